"""`setpoint compare` and `report`: runs side by side, in the terminal and as one HTML file."""

from __future__ import annotations

from pathlib import Path

from setpoint.cli.options import IMPORT, JSON, Arguments, Command, Option
from setpoint.cli.output import colours, emit
from setpoint.cli.runs import print_runs
from setpoint.cli.source import open_table, run_path
from setpoint.config import ABSENT, SetpointError, did_you_mean, plural
from setpoint.files.lock import is_locked
from setpoint.report.page.content import document
from setpoint.report.page.html import NAME, html_of, refuse_foreign, write_page
from setpoint.report.page.panels import RunObjective
from setpoint.report.page.run_data import RunData, read_run
from setpoint.report.plot import Plot, Series, chart, refuse_suffix, save
from setpoint.report.table import Table
from setpoint.sweep.comparison import (
    ComparedRun,
    average,
    cell_of,
    comparison,
    differing,
    entries,
    groups_over,
    mean_and_deviation,
    read_metrics,
)
from setpoint.sweep.run_metrics import EVALUATION, TRAINING_LOSS, MetricPath, require
from setpoint.track.run_directory import no_run, not_a_run

MAX_VALUES = 10
"""Values of the configuration that are shown without --all."""


@Command(
    "compare RUN...",
    Option("--metric PATH", "Show this metric instead of the default ones.", True),
    Option("--sort COLUMN", "Sort by a metric or a value; runs without it come last."),
    Option("--reverse", "Sort the largest first.", requires="--sort"),
    Option(
        "--over COLUMN",
        "Average runs that differ only in this value, such as seed; .std is the deviation.",
    ),
    Option("--chart", "Draw the first metric in the terminal as well.", excludes="--json --csv"),
    Option("--plot FILE", "Draw the first metric into a .png or .svg file as well."),
    Option(
        "--x COLUMN", "Value or metric on the x axis; default: step.", requires="--chart|--plot"
    ),
    Option("--all", f"Show all differing values; default: at most {MAX_VALUES}."),
    Option("--csv", "Print comma-separated values.", excludes="--json"),
    JSON,
    IMPORT,
)
def compare(arguments: Arguments) -> int:
    """Print a table of runs: the values in which their configurations differ, and metrics.

    RUN is a run directory, the folder of a sweep, a folder of runs, or any other SOURCE (without
    metrics). A metric is named KIND.COLUMN as in metrics.jsonl (val.loss is the held-out loss); it
    is the last value unless .min, .max or .mean is appended. Values that are derived in all runs
    are omitted, as are name, experiment and workspace.

    Examples:
        setpoint compare runs/sweep-tiny  all points of a sweep
        setpoint compare runs --sort val.loss  all runs, the best first
        setpoint compare runs/sweep-tiny --over seed  mean and deviation over the seeds
        setpoint compare runs/sweep-tiny --x optimizer.lr --chart  the loss over the learning rate
    """
    path = arguments.value("--plot")
    if path is not None:
        refuse_suffix(path)
    notes: list[str] = []
    runs = _load(entries(arguments.positional, notes), arguments, notes)
    for run in runs:
        read_metrics(run, notes)
    result = comparison(runs, arguments.values("--metric"))
    if result.columns == ["run"]:
        same = "the configurations do not differ, and " if len(runs) > 1 else ""
        notes.append(f"nothing to compare: {same}there are no metrics")
    if (order := arguments.value("--sort")) is not None:
        order = _column(result, order, runs)
    plotted = [(run.label, [run]) for run in runs]
    if (over := arguments.value("--over")) is not None:
        grouped = groups_over(result, over, {path for run in runs for path in run.values})
        groups = ([runs[number] for number in group] for group in grouped.groups)
        plotted = [*zip(grouped.labels(result), groups, strict=True)]
        result = average(result, grouped, notes)
    if order is not None:
        result.sort(order, arguments.has("--reverse"))
    plot = None
    if path is not None or arguments.has("--chart"):
        plot = _plot(plotted, result, arguments)
    if not any(map(arguments.has, ("--all", "--csv", "--json"))):
        _hide_values(result, runs, order, notes)
    if plot is not None and path is not None:
        save(plot, path)
    print_runs(arguments, result, notes)
    if plot is not None and arguments.has("--chart"):
        print(f"\n{chart(plot, colour=colours())}")
    return 0


def _hide_values(
    result: Table, runs: list[ComparedRun], order: str | None, notes: list[str]
) -> None:
    """Limit the values shown to `MAX_VALUES`, starting with those set in most runs."""
    kept = () if order is None else (result.columns[result.index(order)],)
    values = [
        place
        for place, name in enumerate(result.columns)
        if name not in kept and any(name in run.values for run in runs)
    ]
    values.sort(key=lambda place: sum(row[place] is ABSENT for row in result.rows))
    hidden = sorted(values[MAX_VALUES:])
    if not hidden:
        return
    names = [result.columns[place] for place in hidden]
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    notes.append(f"differing values not shown: {', '.join(names[:6])}{more}; --all shows them")
    result.drop(hidden)


def _load(runs: list[ComparedRun], arguments: Arguments, notes: list[str]) -> list[ComparedRun]:
    """Read the values as recorded; a run with a damaged record is named and omitted."""
    shown: list[ComparedRun] = []
    for entry in runs:
        try:
            entry.values = open_table(entry.source, arguments, overrides=False)
        except SetpointError as error:
            if entry.run is None or entry.source in arguments.positional:
                raise no_run(entry.source, error) from None
            notes.append(f"{entry.label}: {str(error).partition(chr(10))[0]}")
            continue
        shown.append(entry)
    if not shown:
        raise SetpointError("no runs to show" + "".join(f"\n  {note}" for note in notes))
    return shown


def _column(result: Table, name: str, runs: list[ComparedRun]) -> str:
    """The full name of the column to sort by; a metric that is not shown yet is added."""
    try:
        return result.columns[result.index(name)]
    except SetpointError:
        try:
            path = require(name, [run.metrics for run in runs])
        except SetpointError:
            return name  # perhaps a column of --over; the sort refuses any other
    if path.name not in result.columns:
        result.add(path.name, [cell_of(run, path) for run in runs])
    return path.name


def _plot(groups: list[tuple[str, list[ComparedRun]]], result: Table, arguments: Arguments) -> Plot:
    """A plot with a curve or point for each group, of the means of its runs."""
    runs = [run for _, group in groups for run in group]
    metrics = [run.metrics for run in runs]
    losses = [n for n in ("evaluation.held_out_loss", TRAINING_LOSS) if n in result.columns]
    paths = {name: MetricPath.parse(name) for name in arguments.values("--metric")[:1] or losses}
    if not paths:
        raise SetpointError("there is nothing to draw: no run has a metric")
    name, x = next(iter(paths)), arguments.value("--x")
    if x is None:
        # A single evaluation at the end is not a curve; use the training loss.
        drawn = [n for n, path in paths.items() if any(len(m.curve(path)) > 1 for m in metrics)]
        name = (drawn or [name])[0]
        series: list[Series] = []
        for label, group in groups:
            curves = [dict(run.metrics.curve(paths[name])) for run in group]
            curves = [curve for curve in curves if curve]
            steps = [s for s in (curves or [{}])[0] if all(s in curve for curve in curves)]
            means = ((s, mean_and_deviation([curve[s] for curve in curves])[0]) for s in steps)
            partial = "" if len(curves) == len(group) else f", {len(curves)} with this metric"
            series.append(Series(f"{label}{partial}", [*means]))
        return Plot(f"{name} over the steps", "step", name, series)
    numbers, points = iter(_numbers(x, runs)), list[tuple[float, float]]()
    for _, group in groups:
        pairs = [(next(numbers), run.metrics.value(paths[name])) for run in group]
        known = [(value, y) for value, y in pairs if value is not None and y is not None]
        if known:
            xs, ys = (mean_and_deviation(values)[0] for values in zip(*known, strict=True))
            points.append((xs, ys))
    if not points:
        raise SetpointError(f"there is nothing to draw: no run has both {x} and {name} as numbers")
    return Plot(f"{name} over {x}", x, name, [Series("runs", sorted(points))], lines=False)


def _numbers(name: str, runs: list[ComparedRun]) -> list[float | None]:
    """The numbers of a metric, or of a configuration value given by the end of its path."""
    values = {".".join(path): v for path, v in differing([run.values for run in runs]).items()}
    matches = [path for path in values if f".{path}".endswith(f".{name}")]
    if len(matches) > 1:
        raise SetpointError(
            f"--x {name} matches several values: {', '.join(matches)}; name one of them"
        )
    if matches:
        return [
            float(value) if isinstance(value, int | float) and value is not True else None
            for value in values[matches[0]]
        ]
    metrics = [run.metrics for run in runs]
    try:
        path = require(name, metrics)
    except SetpointError:
        columns = dict.fromkeys(column for run in metrics for column in run.columns())
        fields = {path for run in runs for path in run.values}
        is_equal = any(f".{path}".endswith(f".{name}") for path in fields)
        reason = (
            "does not differ between the runs, or is derived in all of them"
            if is_equal
            else "is neither a value nor a metric of these runs"
        )
        meant = "" if is_equal else did_you_mean(name, [*values, *fields, *columns], " ")
        raise SetpointError(
            f"--x {name} {reason}.{meant}\nValues that differ: {', '.join(values) or 'none'}"
            f"\nMetrics: {', '.join(columns) or 'none'}"
        ) from None
    return [run.value(path) for run in metrics]


@Command(
    "report RUN...",
    Option("--output FILE", "Output file; default: report.html."),
    Option("--objective PATH", "Metric that runs are ranked by; default evaluation.held_out_loss."),
    Option("--direction minimize|maximize", "Goal of --objective.", requires="--objective"),
    JSON,
)
def report(arguments: Arguments) -> int:
    """Write one self-contained HTML file about runs.

    The report has curves with zoom and hover, the configuration with origins and search,
    differences between the runs, shares of data, samples, events and the environment. RUN is a run
    directory, the folder of a sweep, a folder of runs, or a preset or file, which means its run.
    With three or more runs it also has parallel coordinates and the importance of the fields in
    which they differ.

    Records are read as data: no code named in them is imported. Damaged parts are omitted, with a
    note. The file is report.html in the directory of the run or sweep; for several, in the working
    directory.

    Examples:
        setpoint report runs/tiny-3fa94c21  one run
        setpoint report runs/a runs/b --output both.html  two runs side by side
        setpoint report runs/sweep-tiny  all points of a sweep
    """
    objective = _objective(arguments)
    words, notes = [run_path(word, arguments) for word in arguments.positional], list[str]()
    path = _output(words, arguments)
    refuse_foreign(path)
    runs: list[RunData] = []
    for entry in entries(words, notes):
        if entry.run is None:
            raise not_a_run(entry.source)
        label = entry.run.resolve().name if entry.label == entry.source else entry.label
        runs.append(read_run(entry.run, label, is_locked(entry.run / ".lock")))
    if not runs:
        raise SetpointError("no runs to show" + "".join(f"\n  {note}" for note in notes))
    if objective is not None and all(objective.of(run) is None for run in runs):
        known = dict.fromkeys(name for run in runs for name in run.columns)
        raise SetpointError(
            f"no run has the metric {objective.column!r}\nValid: {', '.join(list(known)[:30])}"
        )
    several = len(words) > 1 or len(runs) > 1
    title = f"{len(runs)} runs" if len(runs) > 3 else ", ".join(run.label for run in runs)
    title = Path(words[0]).resolve().name if len(words) == 1 else title
    content = document(runs, title if several else runs[0].label, objective, notes)
    size = write_page(html_of(content), path)
    notes += [f"{run.label}: {text}" for run in runs for text in run.problems]
    facts = {"report": str(path), "bytes": size, "runs": len(runs), "notes": notes}
    emit(arguments, facts, f"{path}: {plural(len(runs), 'run')}, {size / 1e6:.2f} MB", notes)
    return 0


def _output(words: list[str], arguments: Arguments) -> Path:
    output = arguments.value("--output")
    if output is not None:
        if not output.lower().endswith((".html", ".htm")):
            raise SetpointError(f"--output {output}: the name of a report must end in .html")
        return Path(output)
    return Path(words[0]) / NAME if len(words) == 1 and Path(words[0]).is_dir() else Path(NAME)


def _objective(arguments: Arguments) -> RunObjective | None:
    text = arguments.value("--objective")
    if text is None:
        return None
    metric = MetricPath.parse(text)
    column = f"{metric.kind or EVALUATION}.{metric.column}"
    return RunObjective(column, metric.reduction, arguments.value("--direction") != "maximize")
