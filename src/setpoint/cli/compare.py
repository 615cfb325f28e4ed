"""`setpoint compare`: what differs in the configurations of runs, and what the runs came to."""

from __future__ import annotations

import os
import sys
from typing import Any

from setpoint.cli.options import IMPORT, JSON, Arguments, Command, Option
from setpoint.cli.output import table
from setpoint.cli.source import open_table
from setpoint.config import (
    ABSENT,
    SetpointError,
    in_full,
    plain,
)
from setpoint.report.figure import refuse_suffix, save
from setpoint.report.series import Plot, Series
from setpoint.report.table import Table
from setpoint.report.terminal import chart
from setpoint.report.width import fitted
from setpoint.sweep.compare import Entry, cell_of, comparison, differing, entries, read_metrics
from setpoint.sweep.metrics import TRAINING_LOSS, MetricPath, require

MOST = 10  # values of the configuration beside one another that people can read

COMMAND = Command(
    "compare",
    "RUN...",
    "Print a table of runs: only the values in which their configurations differ, and what each\n"
    "came to. RUN is a run directory, the folder of a sweep, a folder of runs, or any other\n"
    "SOURCE, which has no metrics. A metric is named KIND.COLUMN, as the rows of metrics.jsonl\n"
    "have it, and is the last value unless .min, .max or .mean follows. Values that are derived\n"
    "everywhere are left out, as are name, experiment and workspace.",
    [
        Option("--metric", "Show this metric instead of the default ones.", "PATH", True),
        Option("--sort", "Sort by a metric or a value; runs without it come last.", "COLUMN"),
        Option("--reverse", "Sort the largest first."),
        Option("--chart", "Draw the first metric in the terminal as well."),
        Option("--plot", "Draw the first metric into a .png or .svg file as well.", "FILE"),
        Option("--x", "Draw over this value or metric instead of the steps.", "COLUMN"),
        Option("--all", f"Show all values that differ, also where they are more than {MOST}."),
        Option("--csv", "Print comma-separated values."),
        JSON,
        IMPORT,
    ],
    [
        ("setpoint compare runs/sweep-tiny", "all points of a sweep"),
        ("setpoint compare runs --sort evaluation.held_out_loss", "all runs, the best first"),
        ("setpoint compare runs/sweep-tiny --x optimizer.lr --chart", "the loss over the rate"),
    ],
    positional=(1, sys.maxsize),
)


@COMMAND
def run(arguments: Arguments) -> int:
    """Print the table, and draw what was asked for.

    Returns:
        the exit status: 0; a run that cannot be shown is named on standard error.
    """
    _refuse_options(arguments)
    notes: list[str] = []
    shown = _load(entries(arguments.positional, notes), arguments, notes)
    for entry in shown:
        read_metrics(entry, notes)
    wanted = arguments.options.get("--metric", [])
    result = comparison(shown, wanted)
    if result.columns == ["run"]:
        what = "their configurations do not differ" if len(shown) > 1 else "it is the only one"
        notes.append(f"nothing to show: {what}, and there are no metrics")
    order = arguments.value("--sort")
    if order is not None:
        result.sort(_column(result, order, shown), arguments.has("--reverse"))
    plot = _plot(shown, result, arguments) if _draws(arguments) else None
    if arguments.has("--json"):
        import json

        print(json.dumps({"runs": result.to_json(plain), "notes": notes}, indent=2))
    elif arguments.has("--csv"):
        print(result.to_csv(in_full), end="")
    else:
        if not arguments.has("--all"):
            _bound(result, shown, order, notes)
        _print(result, notes)
    if plot is not None:
        _draw(plot, arguments)
    if not arguments.has("--json"):
        sys.stdout.flush()
        for note in notes:
            print(f"note: {note}", file=sys.stderr)
    return 0


def _bound(result: Table, shown: list[Entry], order: str | None, notes: list[str]) -> None:
    """Leave out values that few runs have, where jobs differ in more than can be read."""
    kept = () if order is None else (result.columns[result.index(order)],)
    values = [
        at
        for at, name in enumerate(result.columns)
        if name not in kept and any(name in entry.values for entry in shown)
    ]
    # What most runs have comes first; what they all have tells them apart best.
    values.sort(key=lambda at: sum(row[at] is ABSENT for row in result.rows))
    gone = sorted(values[MOST:])
    if not gone:
        return
    names = [result.columns[at] for at in gone]
    rest = f" and {len(names) - 6} more" if len(names) > 6 else ""
    notes.append(f"{len(gone)} more values differ: {', '.join(names[:6])}{rest}; --all shows them")
    result.drop(gone)


def _print(result: Table, notes: list[str]) -> None:
    rows = [result.headings, *result.cells(in_full)]
    if sys.stdout.isatty():  # elsewhere it stays whole, for other programs to read
        import shutil

        rows, note = fitted(result.headings, rows[1:], shutil.get_terminal_size().columns)
        notes.extend([note] if note else [])
    print(table(rows[1:], rows[0]))


def _refuse_options(arguments: Arguments) -> None:
    if arguments.overrides:
        raise SetpointError(
            f"unexpected argument {arguments.overrides[0]!r}: setpoint compare takes runs as they "
            f"are; an option that it knows is one of "
            f"{', '.join(option.name for option in COMMAND.options)}"
        )
    if arguments.has("--json") and arguments.has("--csv"):
        raise SetpointError("--json and --csv contradict each other; give one")
    if arguments.has("--chart") and (arguments.has("--json") or arguments.has("--csv")):
        raise SetpointError("--chart is for people; leave it out, or leave --json and --csv out")
    if arguments.has("--reverse") and not arguments.has("--sort"):
        raise SetpointError("--reverse has no effect without --sort")
    if arguments.has("--x") and not _draws(arguments):
        raise SetpointError("--x has no effect without --chart or --plot FILE")
    path = arguments.value("--plot")
    if path is not None:
        refuse_suffix(path)


def _draws(arguments: Arguments) -> bool:
    return arguments.has("--chart") or arguments.has("--plot")


def _load(found: list[Entry], arguments: Arguments, notes: list[str]) -> list[Entry]:
    """Read the values as they were recorded; a run with a damaged record is named and left out."""
    shown: list[Entry] = []
    for entry in found:
        try:
            entry.values = open_table(entry.source, arguments, overrides=False)
        except SetpointError as error:
            if entry.run is None or entry.source in arguments.positional:
                raise
            notes.append(f"{entry.label}: {str(error).partition(chr(10))[0]}")
            continue
        shown.append(entry)
    if not shown:
        raise SetpointError("there is no run to show" + "".join(f"\n  {note}" for note in notes))
    return shown


def _column(result: Table, name: str, shown: list[Entry]) -> str:
    """The column to sort by; a metric that is not shown yet is put beside the others."""
    if name in result.columns or name in result.headings:
        return name
    try:
        path = require(name, [entry.metrics for entry in shown])
    except SetpointError:
        result.index(name)  # says which columns there are
        raise
    result.columns.append(name)
    result.headings.append(name)
    for row, entry in zip(result.rows, shown, strict=True):
        row.append(cell_of(entry, path))
    return name


def _plot(shown: list[Entry], result: Table, arguments: Arguments) -> Plot:
    metrics = [entry.metrics for entry in shown]
    wanted = arguments.options.get("--metric", [])
    usual = [n for n in ("evaluation.held_out_loss", TRAINING_LOSS) if n in result.columns]
    names = wanted[:1] or usual
    if not names:
        raise SetpointError("there is nothing to draw: no run has a metric")
    x = arguments.value("--x")
    if x is None:
        # One evaluation at the end is no curve; the training loss is.
        curves = [name for name in names if any(len(m.curve(_path(name))) > 1 for m in metrics)]
        name = (curves or names)[0]
        series = [Series(entry.label, entry.metrics.curve(_path(name))) for entry in shown]
        return Plot(f"{name} over the steps", "step", name, series)
    name = names[0]
    values = _values(x, shown)
    points = [
        (value, y)
        for value, entry in zip(values, shown, strict=True)
        if value is not None and (y := entry.metrics.value(_path(name))) is not None
    ]
    if not points:
        raise SetpointError(f"there is nothing to draw: no run has both {x} and {name} as numbers")
    return Plot(f"{name} over {x}", x, name, [Series("runs", sorted(points))], lines=False)


def _path(name: str) -> MetricPath:
    return MetricPath.parse(name)


def _values(name: str, shown: list[Entry]) -> list[float | None]:
    """The numbers of a column that may be a value of the configuration or a metric."""
    found = differing([entry.values for entry in shown])
    columns = {".".join(path): values for path, values in found.items()}
    close = [key for key in columns if key == name or key.endswith(f".{name}")]
    if len(close) == 1:
        return [_number(value) for value in columns[close[0]]]
    path = require(name, [entry.metrics for entry in shown])
    return [entry.metrics.value(path) for entry in shown]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and value is not True else None


def _draw(plot: Plot, arguments: Arguments) -> None:
    path = arguments.value("--plot")
    if path is not None:
        save(plot, path)
    if arguments.has("--chart"):
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        print()
        print(chart(plot, colour=colour))
