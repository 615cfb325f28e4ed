"""`setpoint schedule`: the learning rate over the run, drawn before anything is trained."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from setpoint.cli.options import COMMON, JSON, SOURCE_HELP, Arguments, Command, Option
from setpoint.cli.output import print_cautions, table
from setpoint.cli.source import open_source
from setpoint.config import Config, SetpointError, cautions_of
from setpoint.plan.curve import Curve, Point, draw_curve
from setpoint.report.figure import refuse_suffix, save
from setpoint.report.series import Plot, Series
from setpoint.report.terminal import chart

if TYPE_CHECKING:
    from setpoint.train.config import Job

COMMAND = Command(
    "schedule",
    "SOURCE... [OVERRIDES]",
    "Draw the learning rate of a configuration over its steps, without training it, or over its\n"
    "duration where only the data or the clock tells how many steps there will be. Of several\n"
    "sources, all in one drawing. OVERRIDES apply to each of them. The learning rate is that of\n"
    "parameters that are in no group with a multiplier of its own.\n" + SOURCE_HELP,
    [
        Option("--steps", "Draw this many steps instead of the run's.", "N"),
        Option("--every", "Print a row for every N-th step instead of a drawing.", "N"),
        Option("--plot", "Draw into a .png or .svg file, instead of the terminal.", "FILE"),
        *COMMON,
        JSON,
    ],
    [
        ("setpoint schedule tiny", "the preset's"),
        ("setpoint schedule tiny --schedule wsd --every 50", "another one, in numbers"),
        ("setpoint schedule a.toml b.toml --plot rates.png", "two in a picture"),
    ],
    positional=(1, sys.maxsize),
)
FOR_MACHINES = 100  # rows of JSON, unless --every says otherwise
BARS, LENGTH = 16, 40  # rows of the plain drawing, and signs of its longest bar


@COMMAND
def run(arguments: Arguments) -> int:
    """Draw, or print the numbers."""
    path, every = arguments.value("--plot"), arguments.integer("--every") or 0
    if path is not None:
        for other in ("--json", "--every"):
            if arguments.has(other):
                raise SetpointError(f"--plot FILE has no rows; leave {other} or --plot out")
        refuse_suffix(path)
    most = FOR_MACHINES if arguments.has("--json") else 1000
    shown: list[tuple[str, Job, Curve]] = []
    for source in arguments.positional:
        composition = open_source(source, arguments)
        job = composition.resolve()
        curve = draw_curve(job, arguments.integer("--steps"), every, most)
        shown.append((composition.label, job, curve))
    if arguments.has("--json"):
        import json

        print(json.dumps({"curves": [_facts(*each) for each in shown]}, indent=2))
        return 0
    print("\n".join(_heading(*each) for each in shown))
    if every:
        for label, _, curve in shown:
            above = f"\n{label}\n" if len(shown) > 1 else "\n"
            print(above + table(_rows(curve), [_axis(curve), "factor", "learning rate"]))
    elif path is not None:
        save(_plot(shown), path)
        print(f"drawn into {path}")
    else:
        print("\n" + _drawing(shown))
    sys.stdout.flush()
    for label, _, curve in shown:
        for note in curve.notes:
            print(f"note: {label}: {note}", file=sys.stderr)
    _print_cautions(shown)
    return 0


def _print_cautions(shown: list[tuple[str, Job, Curve]]) -> None:
    """What `check` would say, so that a curve that is seldom meant does not look usual."""
    for _, job, _ in shown:
        print_cautions(cautions_of(job))


def _tag(section: Config) -> str:
    return str(type(section).__setpoint__.tag)


def _heading(label: str, job: Job, curve: Curve) -> str:
    first, high, last = curve.points[0], curve.highest, curve.points[-1]
    where = f"step {high.step:,}" if curve.unit == "steps" else f"{high.at:.4g} {curve.unit}"
    return (
        f"{label}: {_tag(job.schedule)}, {curve.length}; {first.lr:.4g} at first, "
        f"{high.lr:.4g} at most ({where}), {last.lr:.4g} at last"
    )


def _facts(label: str, job: Job, curve: Curve) -> dict[str, Any]:
    return {
        "source": label,
        "type": _tag(job.schedule),
        "lr": job.optimizer.lr,
        "length": str(curve.length),
        "unit": curve.unit,
        "notes": list(curve.notes),
        "rows": [point._asdict() for point in curve.points],
    }


def _axis(curve: Curve) -> str:
    return "step" if curve.unit == "steps" else curve.unit


def _at(curve: Curve, point: Point) -> str:
    return f"{point.step:,}" if curve.unit == "steps" else f"{point.at:.4g}"


def _rows(curve: Curve) -> list[list[str]]:
    return [[_at(curve, p), f"{p.factor:.6f}", f"{p.lr:.6g}"] for p in curve.points]


def _plot(shown: list[tuple[str, Job, Curve]]) -> Plot:
    # Curves over different units have only their own length in common.
    units = {_axis(curve) for _, _, curve in shown}
    axis = units.pop() if len(units) == 1 else "share of the run"
    series = [
        Series(
            f"{label} ({_tag(job.schedule)})",
            [(p.at / (1 if axis == _axis(curve) else _whole(curve)), p.lr) for p in curve.points],
        )
        for label, job, curve in shown
    ]
    return Plot("learning rate over the run", axis, "learning rate", series, linear=True)


def _whole(curve: Curve) -> float:
    return curve.length.in_unit(curve.unit) or 1


def _drawing(shown: list[tuple[str, Job, Curve]]) -> str:
    try:
        return chart(_plot(shown), colour=sys.stdout.isatty() and not os.environ.get("NO_COLOR"))
    except SetpointError:  # the package that draws lines is not installed
        return "\n\n".join(_bars(label, curve) for label, _, curve in shown)


def _bars(label: str, curve: Curve) -> str:
    """A plain drawing: a bar for some of the steps."""
    points, top = curve.points, curve.highest.lr or 1.0
    count = min(BARS, len(points))
    chosen = [points[round(i * (len(points) - 1) / max(count - 1, 1))] for i in range(count)]
    rows = [[_at(curve, p), f"{p.lr:.4g}", "#" * round(LENGTH * p.lr / top)] for p in chosen]
    return table(rows, [_axis(curve), "learning rate", label])
