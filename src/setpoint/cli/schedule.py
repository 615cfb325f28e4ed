"""`setpoint schedule`: the learning rate over the run, drawn before anything is trained."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from setpoint.cli.options import COMMON, JSON, SOURCE_HELP, Arguments, Command, Option
from setpoint.cli.output import emit, print_cautions, table
from setpoint.cli.source import open_source
from setpoint.config import Config, SetpointError, cautions_of
from setpoint.plan.curve import Curve, Point, draw_curve
from setpoint.report.plot import Plot, Series, chart, refuse_suffix, save

if TYPE_CHECKING:
    from setpoint.train.config import Job

JSON_ROWS = 100
"""Rows of JSON without --every."""
BARS, BAR = 16, 40
"""Rows of the plain drawing, and characters of its longest bar."""


@Command(
    "schedule",
    "SOURCE... [OVERRIDES]",
    "Draw the learning rate of a configuration over its steps, without training it, or over its\n"
    "duration where only the data or the clock tells how many steps there will be. Of several\n"
    "sources, all in one drawing. OVERRIDES apply to each of them. The learning rate is that of\n"
    "parameters that are in no group with a multiplier of its own.\n" + SOURCE_HELP,
    [
        Option("--steps", "Number of steps to draw; default: those of the run.", "N", type=int),
        Option("--every", "Print a row for every N-th step instead of a drawing.", "N", type=int),
        Option("--plot", "Draw into a .png or .svg file, instead of the terminal.", "FILE",
               excludes=("--json", "--every")),
        *COMMON,
        JSON,
    ],
    [
        ("setpoint schedule tiny", "the preset's"),
        ("setpoint schedule tiny --schedule wsd --every 50", "another one, in numbers"),
        ("setpoint schedule a.toml b.toml --plot rates.png", "two in a picture"),
    ],
    positional=(1, sys.maxsize),
)  # fmt: skip
def schedule(arguments: Arguments) -> int:
    """Draw, or print the numbers."""
    path, every = arguments.value("--plot"), arguments.integer("--every") or 0
    if path is not None:
        refuse_suffix(path)
    most = JSON_ROWS if arguments.has("--json") else 1000
    curves: list[tuple[str, Job, Curve]] = []
    for source in arguments.positional:
        composition = open_source(source, arguments)
        job = composition.resolve()
        curve = draw_curve(job, arguments.integer("--steps"), every, most)
        curves.append((composition.label, job, curve))

    def text() -> str:
        headings = "\n".join(_heading(*each) for each in curves)
        if path is not None:
            save(_plot(curves), path)
            return f"{headings}\ndrawn into {path}"
        if not every:
            return f"{headings}\n\n{_drawing(curves)}"
        tables: list[str] = []
        for label, _, curve in curves:
            rows = [[_at(curve, p), f"{p.factor:.6f}", f"{p.lr:.6g}"] for p in curve.points]
            title = f"{label}\n" if len(curves) > 1 else ""
            tables.append(title + table(rows, [_axis(curve), "factor", "learning rate"]))
        return "\n\n".join([headings, *tables])

    notes = [f"{label}: {note}" for label, _, curve in curves for note in curve.notes]
    emit(arguments, lambda: {"curves": [_facts(*each) for each in curves]}, text, notes)
    if not arguments.has("--json"):
        for _, job, _ in curves:  # so that an unusual curve is noticed
            print_cautions(cautions_of(job))
    return 0


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


def _plot(curves: list[tuple[str, Job, Curve]]) -> Plot:
    # Curves over different units have only their own length in common.
    units = {_axis(curve) for _, _, curve in curves}
    axis = units.pop() if len(units) == 1 else "share of the run"
    series = [
        Series(
            f"{label} ({_tag(job.schedule)})",
            [(p.at / (1 if axis == _axis(curve) else _length(curve)), p.lr) for p in curve.points],
        )
        for label, job, curve in curves
    ]
    return Plot("learning rate over the run", axis, "learning rate", series, linear=True)


def _length(curve: Curve) -> float:
    return curve.length.in_unit(curve.unit) or 1


def _drawing(curves: list[tuple[str, Job, Curve]]) -> str:
    try:
        return chart(_plot(curves), colour=sys.stdout.isatty() and not os.environ.get("NO_COLOR"))
    except SetpointError:  # the package that draws lines is not installed
        return "\n\n".join(_bars(label, curve) for label, _, curve in curves)


def _bars(label: str, curve: Curve) -> str:
    """A plain drawing: a bar for some of the steps."""
    points, top = curve.points, curve.highest.lr or 1.0
    count = min(BARS, len(points))
    chosen = [points[round(i * (len(points) - 1) / max(count - 1, 1))] for i in range(count)]
    rows = [[_at(curve, p), f"{p.lr:.4g}", "#" * round(BAR * p.lr / top)] for p in chosen]
    return table(rows, [_axis(curve), "learning rate", label])
