"""`setpoint plan` and `schedule`: a job's fastest layouts and its learning rate, before it runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setpoint.cli.options import (
    COMMON,
    GPU,
    GPU_OPTIONS,
    JSON,
    WORLD_SIZE,
    Arguments,
    Command,
    Option,
)
from setpoint.cli.output import bold, colours, emit, print_cautions, table, wrapped
from setpoint.cli.source import open_source, resolver
from setpoint.config import Config, SetpointError, cautions_of
from setpoint.plan.curve import Curve, Point, draw_curve
from setpoint.report.plot import Plot, Series, blocks, chart, refuse_suffix, save
from setpoint.units.size import in_units

if TYPE_CHECKING:
    from setpoint.plan.cost import CostEstimate, CostRequest
    from setpoint.plan.layouts import Plan
    from setpoint.train.config import Job


@Command(
    "plan SOURCE [OVERRIDES]",
    *COMMON,
    WORLD_SIZE,
    GPU._replace(help="GPU that the job runs on, such as h100.", required=True),
    *GPU_OPTIONS[1:],
    Option("--memory SIZE", "Bytes of a GPU to use, such as 72GiB; default: nine tenths."),
    Option("--top N", "Number of layouts to print; default: 10."),
    JSON,
)
def plan(arguments: Arguments) -> int:
    """Find the fastest parallel layouts of a job for --world-size N GPUs.

    The search covers the degrees of all axes, micro-batches, recomputation and pipeline schedules,
    within the memory of a GPU. The best layouts are printed as overrides; each has passed all
    checks. Values set by a file, the environment or an override are kept. Nothing is built and
    PyTorch is not imported. Unless set otherwise, the tensor axis stays within a node and a
    pipeline has at most 16 ranks.

    Examples:
        setpoint plan llama3-70b --gpu h100 --world-size 64  the ten best layouts
        setpoint plan exp.toml --gpu a100 --world-size 16 --memory 64GiB  with less memory
        setpoint plan exp.toml --gpu h100 --world-size 64 --parallel.tensor 8  with a fixed axis
    """
    from setpoint.plan.layouts import find_layouts
    from setpoint.train.config import Job

    request = read_cost_options(arguments)
    composition = open_source(arguments.source, arguments)
    if not isinstance(composition.draft, Job):
        kind = type(composition.draft).__name__
        raise SetpointError(f"{kind} is not a training job, which `setpoint plan` needs")
    count, memory = arguments.integer("--top") or 10, arguments.value("--memory")
    result = find_layouts(composition, request, memory, count, resolver(arguments))
    result.first.write(composition.label)

    def text() -> str:
        size = result.space.world_size
        title = f"{composition.label} on {size:,} x {request.title}"
        rows = [(f"  {name}", value) for name, value in result.first.facts()
                if name in ("run", "GPU-hours", "price", "energy")]  # fmt: skip
        details = (
            f"  details: setpoint check {arguments.source} --plan --gpu {request.name} "
            f"--world-size {size} and its overrides"
        )
        lines = "\n".join(_lines(title, result))
        return f"{lines}\n\n{bold('the first of them')}\n{table(rows)}\n{details}"

    emit(arguments, result.to_json, text)
    return 0


def _lines(title: str, plan_result: Plan) -> Iterator[str]:
    from setpoint.plan.timeline import seconds

    space, result = plan_result.space, plan_result.result
    yield bold(title)
    yield (
        f"  {result.meshes:,} meshes, {result.timed:,} topologies timed; at most "
        f"{in_units(space.limit)} a rank"
    )
    if result.unknown:
        yield f"  omitted where the memory is unknown: {result.unknown}"
    if space.fixed:
        names = ", ".join(f"{name} = {value}" for name, value in space.fixed.items())
        yield f"  fixed: {names}"
    yield ""
    rows = [
        (f"  {number}", seconds(layout.time.seconds), f"{layout.time.tokens_per_second:,.0f}",
         f"{layout.time.mfu:.1%}", in_units(layout.memory.total))
        for number, (_, layout) in enumerate(plan_result.layouts, 1)
    ]  # fmt: skip
    yield table(rows, ("  ", "step", "tokens/s", "MFU", "memory"))
    for number, (overrides, _) in enumerate(plan_result.layouts, 1):
        yield f"\n{number}: {' '.join(map(shlex.quote, overrides))}"


def read_cost_options(arguments: Arguments) -> CostRequest:
    """Read the options; --gpu is given."""
    name = arguments.value("--gpu")
    assert name is not None
    from setpoint.plan.cost import CostRequest
    from setpoint.plan.gpus import gpu_named

    known = gpu_named(name, arguments.value("--gpu-file"))
    timeline = arguments.value("--timeline")
    path = None if timeline is None else Path(timeline)
    if path is not None:
        from setpoint.report.page.html import refuse_foreign

        refuse_foreign(path, "--timeline")
    price, power = arguments.number("--price"), arguments.number("--power")
    return CostRequest.of(name, known, price, power, path)


def render_estimate(estimate: CostEstimate) -> str:
    """The expected time and cost as text."""
    from setpoint.plan.timeline import draw, seconds

    time = estimate.time
    parts = [
        (f"  {name}", seconds(part), f"{part / time.seconds:.1%}")
        for name, part in time.parts.items()
    ]
    lines = [
        bold(f"expected on {time.ranks:,} x {estimate.request.title}"),
        table([(f"  {name}", value) for name, value in estimate.facts()]),
        "",
        bold("time of a step on the slowest rank"),
        table(parts),
        *(f"  beside it: {name}, {seconds(part)}" for name, part in time.hidden.items()),
        "",
        draw(time.draw()),
        "",
        bold("assumed"),
        *(wrapped(text, "  ") for text in time.assumptions),
    ]
    return "\n".join(lines)


JSON_ROWS = 100
"""Rows of JSON without --every."""
WIDTH = 60
"""Characters of a plain drawing."""


@Command(
    "schedule SOURCE... [OVERRIDES]",
    Option("--steps N", "Number of steps to draw; default: the run's."),
    Option("--every N", "Print a row for every N-th step instead of a drawing."),
    Option("--plot FILE", "Draw into a .png or .svg file.", excludes="--json --every"),
    *COMMON,
    JSON,
)
def schedule(arguments: Arguments) -> int:
    """Draw the learning rate of configurations over their steps, without training.

    If the number of steps is limited only by the data or the clock, the curve is drawn over the
    duration. OVERRIDES apply to each SOURCE. The learning rate is that of parameters without a
    group multiplier.

    Examples:
        setpoint schedule tiny  the schedule of a preset
        setpoint schedule tiny --schedule wsd --every 50  another schedule, as numbers
        setpoint schedule a.toml b.toml --plot rates.png  two in a picture
    """
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
        headings = "\n".join(_heading(*curve) for curve in curves)
        if path is not None:
            save(_rate_plot(curves), path)
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
    emit(arguments, lambda: {"curves": [_curve_facts(*curve) for curve in curves]}, text, notes)
    if not arguments.has("--json"):
        for _, job, _ in curves:  # an unusual curve should be noticed
            print_cautions(cautions_of(job))
    return 0


def _tag(section: Config) -> str:
    return str(type(section).__setpoint__.tag)


def _heading(label: str, job: Job, curve: Curve) -> str:
    first, high, last = curve.points[0], curve.highest, curve.points[-1]
    where = f"step {high.step:,}" if curve.unit == "steps" else f"{high.at:.4g} {curve.unit}"
    return (
        f"{label}: {_tag(job.schedule)}, {curve.length}; starts at {first.lr:.4g}, "
        f"peaks at {high.lr:.4g} ({where}), ends at {last.lr:.4g}"
    )


def _curve_facts(label: str, job: Job, curve: Curve) -> dict[str, Any]:
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


def _rate_plot(curves: list[tuple[str, Job, Curve]]) -> Plot:
    # Curves over different units are scaled to their own length.
    units = {_axis(curve) for _, _, curve in curves}
    axis = units.pop() if len(units) == 1 else "share of the run"
    series: list[Series] = []
    for label, job, curve in curves:
        length = 1 if axis == _axis(curve) else curve.length.in_unit(curve.unit) or 1
        points = [(p.at / length, p.lr) for p in curve.points]
        series.append(Series(f"{label} ({_tag(job.schedule)})", points))
    return Plot("learning rate over the run", axis, "learning rate", series, linear=True)


def _drawing(curves: list[tuple[str, Job, Curve]]) -> str:
    try:
        return chart(_rate_plot(curves), colour=colours())
    except SetpointError:  # the plotting package is not installed
        rates = [[point.lr for point in curve.points] for _, _, curve in curves]
        limits = min(map(min, rates)), max(map(max, rates))  # all curves have one scale
        return "\n".join(
            f"{label}  {blocks(values, WIDTH, limits)}"
            for (label, _, _), values in zip(curves, rates, strict=True)
        )
