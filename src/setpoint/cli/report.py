"""`setpoint report`: runs as one HTML file."""

from __future__ import annotations

import sys
from pathlib import Path

from setpoint.cli.options import JSON, Arguments, Command, Option, refuse_overrides
from setpoint.cli.output import print_notes
from setpoint.config import SetpointError
from setpoint.files.lock import is_locked
from setpoint.report.page.content import document
from setpoint.report.page.knobs import Objective
from setpoint.report.page.read import RunData, read_run
from setpoint.report.page.write import NAME, refuse_foreign, write_html
from setpoint.sweep.compare import entries
from setpoint.sweep.metrics import EVALUATION, MetricPath

COMMAND = Command(
    "report",
    "RUN...",
    "Write one HTML file about runs, which needs no network: curves with zoom and hover,\n"
    "configuration with origins and search, differences between the runs, shares of data,\n"
    "samples, events, environment. RUN is a run directory, the folder of a sweep, or a folder of\n"
    "runs; three or more runs get parallel coordinates and the importance of the fields in which\n"
    "they differ.\n"
    "\n"
    "Records are read as data: no code that they name is imported. What is broken in them is left\n"
    "out and said. The file is report.html in the directory of the run or the sweep; of several\n"
    "in the present folder.",
    [
        Option("--output", "Write this file instead.", "FILE"),
        Option("--objective", "Metric that runs are ranked by; default evaluation.held_out_loss.",
               "PATH"),
        Option("--direction", "minimize or maximize the objective.", "WORD",
               choices=("minimize", "maximize")),
        JSON,
    ],
    [
        ("setpoint report runs/tiny-3fa94c21", "one run"),
        ("setpoint report runs/a runs/b --output both.html", "two runs beside one another"),
        ("setpoint report runs/sweep-tiny", "all points of a sweep"),
    ],
    positional=(1, sys.maxsize),
)  # fmt: skip


@COMMAND
def run(arguments: Arguments) -> int:
    """Write the file, and print where it is; what was left out is named on standard error."""
    refuse_overrides(arguments)
    objective = _objective(arguments)
    words, notes = arguments.positional, list[str]()
    path = _output(arguments)
    refuse_foreign(path)
    runs: list[RunData] = []
    for entry in entries(words, notes):
        if entry.run is None:
            raise SetpointError(
                f"{entry.source} is no run directory, no folder of a sweep and no folder of runs\n"
                f"Valid: a folder that `setpoint train` or `setpoint sweep` made; "
                f"`setpoint runs list` shows them"
            )
        label = entry.run.resolve().name if entry.label == entry.source else entry.label
        runs.append(read_run(entry.run, label, is_locked(entry.run / ".lock")))
    if not runs:
        raise SetpointError("there is no run to show" + "".join(f"\n  {note}" for note in notes))
    if objective is not None and all(objective.of(each) is None for each in runs):
        known = dict.fromkeys(name for each in runs for name in each.columns)
        raise SetpointError(
            f"no run has the metric {objective.column!r}\nValid: {', '.join(list(known)[:30])}"
        )
    several = len(words) > 1 or len(runs) > 1
    title = f"{len(runs)} runs" if len(runs) > 3 else ", ".join(each.label for each in runs)
    title = Path(words[0]).resolve().name if len(words) == 1 else title
    content = document(runs, title if several else runs[0].label, objective, notes)
    size = write_html(content, path)
    notes += [f"{each.label}: {text}" for each in runs for text in each.problems]
    if arguments.has("--json"):
        import json

        facts = {"report": str(path), "bytes": size, "runs": len(runs), "notes": notes}
        print(json.dumps(facts, indent=2))
        return 0
    count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    print(f"{path}: {count}, {size / 1e6:.2f} MB")
    sys.stdout.flush()
    print_notes(notes)
    return 0


def _output(arguments: Arguments) -> Path:
    given = arguments.value("--output")
    if given is not None:
        if not given.lower().endswith((".html", ".htm")):
            raise SetpointError(f"--output {given}: a report is a file that ends in .html")
        return Path(given)
    words = arguments.positional
    return Path(words[0]) / NAME if len(words) == 1 and Path(words[0]).is_dir() else Path(NAME)


def _objective(arguments: Arguments) -> Objective | None:
    given, direction = arguments.value("--objective"), arguments.value("--direction")
    if direction not in (None, "minimize", "maximize"):
        raise SetpointError(f"--direction is minimize or maximize, got {direction!r}")
    if given is None:
        if direction is not None:
            raise SetpointError("--direction has no effect without --objective")
        return None
    wanted = MetricPath.parse(given)
    column = f"{wanted.kind or EVALUATION}.{wanted.column}"
    return Objective(column, wanted.reduction, direction != "maximize")
