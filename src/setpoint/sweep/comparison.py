"""Runs side by side: the differences between their configurations, and their metrics."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import isfinite, nan
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from setpoint.checkpoint.places import is_point, run_in, run_of_point
from setpoint.config import (
    ABSENT,
    DERIVED,
    SetpointError,
    can_be_path,
    did_you_mean,
    for_error,
    plural,
)
from setpoint.config.record.record import Table as Values
from setpoint.config.record.record import compare
from setpoint.files import MANIFEST
from setpoint.report.table import Table
from setpoint.sweep.run_metrics import STEP, TRAINING_LOSS, MetricPath, RunMetrics, require
from setpoint.sweep.sweep_record import (
    POINTS,
    SWEEP_FILE,
    WAITING,
    read_record_of,
)
from setpoint.track.run_directory import is_run_directory

WHERE = ("name", "experiment", "workspace")
"""Fields of the run directory, which the label shows."""

STANDARD = ("step", TRAINING_LOSS, "evaluation.held_out_loss", "evaluation.held_out_loss.min")
"""The metrics that are shown unless others are asked for, as far as there are any."""


class ComparedRun:
    """One run, or one configuration without a run."""

    def __init__(self, label: str, source: str, run: Path | None) -> None:
        self.label = label
        self.source = source
        self.run = run
        self.values: Values = {}
        self.metrics = RunMetrics([])


def entries(words: Sequence[str], notes: list[str]) -> list[ComparedRun]:
    """The runs named by the words of a command line."""
    by_path: dict[str, ComparedRun] = {}
    for word in words:
        for entry in _entries(word, notes):
            # The name that a sweep gives its point is preferred to the path.
            if by_path.setdefault(entry.source, entry).label == entry.source:
                by_path[entry.source] = entry
    _tell_apart(list(by_path.values()))
    return list(by_path.values())


def _tell_apart(labelled: Sequence[ComparedRun]) -> None:
    """Prefix equal labels of runs with the folders in which they differ."""
    for label in {entry.label for entry in labelled}:
        same = [entry for entry in labelled if entry.label == label]
        if len(same) == 1:
            continue
        parts = [Path(entry.source).parts for entry in same]
        texts = [entry.source for entry in same]
        for length in range(2, max(map(len, parts)) + 1):
            texts = [Path(*names[-length:]).as_posix() for names in parts]
            if len(set(texts)) == len(same):
                break
        for entry, text in zip(same, texts, strict=True):
            # The settings name a point; its folder does not repeat them.
            entry.label = text if Path(label).name == Path(entry.source).name else f"{text}/{label}"


def _entries(word: str, notes: list[str]) -> Iterator[ComparedRun]:
    path = Path(word)
    if not can_be_path(word):
        raise SetpointError(f"{for_error(word)}: not a valid file name")
    # Of runs/sweep-tiny/*, the record stands for the points.
    if path.name == POINTS and (path.parent / SWEEP_FILE).is_file():
        return
    if path.name == SWEEP_FILE and path.is_file():
        path = path.parent
    if (path / SWEEP_FILE).is_file():
        for point in read_record_of(path):
            run = run_in(path, point["run"])
            if is_run_directory(run):
                yield ComparedRun(point["name"], str(run), run)
            else:
                reason = (
                    f"{point['status']}: "
                    f"{point.get('reason') or 'its run directory no longer exists'}"
                )
                reason = "not started yet" if point["status"] == WAITING else reason
                notes.append(f"{point['name']}: {reason} ({run})")
    elif is_point(path):
        run = run_of_point(path)
        yield ComparedRun(path.name, word, run if is_run_directory(run) else None)
    elif (path / MANIFEST).is_file():
        yield ComparedRun(word, word, None)
    elif is_run_directory(path):
        yield ComparedRun(word, word, path)
    elif path.is_dir():
        runs = sorted(folder for folder in path.iterdir() if is_run_directory(folder))
        if not runs:
            raise SetpointError(
                f"{word} contains no runs: it is neither a run directory, nor the folder of a "
                f"sweep ({SWEEP_FILE}), nor a folder of run directories"
            )
        for run_folder in runs:
            yield ComparedRun(run_folder.name, str(run_folder), run_folder)
    else:
        yield ComparedRun(word, word, None)


def read_metrics(entry: ComparedRun, notes: list[str]) -> None:
    """Read the metrics of a run into its entry, and add notes about missing or damaged ones."""
    if entry.run is None:
        return
    try:
        entry.metrics = RunMetrics.read(entry.run)
        notes.extend(f"{entry.label}: {text}" for text in entry.metrics.damaged)
        if not entry.metrics.rows and not entry.metrics.damaged:
            notes.append(f"{entry.label}: no metrics yet")
    except SetpointError as error:
        notes.append(f"{entry.label}: {error}")


def cell_of(entry: ComparedRun, path: MetricPath) -> Any:
    """A metric of a run as a table cell: the number, or `ABSENT`."""
    value = entry.metrics.value(path)
    return ABSENT if value is None else value


def differing(tables: Sequence[Values]) -> dict[tuple[str, ...], list[Any]]:
    """The values in which configurations differ.

    Returns:
        for each path, its value in each configuration, or `ABSENT`. Values derived in all
        configurations follow from the others and are omitted.
    """
    if len(tables) < 2:
        return {}
    differing_values: dict[tuple[str, ...], list[Any]] = {}
    for row in compare(tables, ignore=WHERE):
        present = [entry for entry in row.entries if entry is not None]
        if not all(entry.origin.startswith(DERIVED) for entry in present):
            values = [ABSENT if entry is None else entry.value for entry in row.entries]
            differing_values[tuple(row.path.split("."))] = values
    return differing_values


def comparison(runs: Sequence[ComparedRun], wanted: Sequence[str]) -> Table:
    """The table of several runs, by default with the usual metrics.

    Raises:
        SetpointError: no run has a requested metric.
    """
    columns = differing([entry.values for entry in runs])
    known = [entry.metrics for entry in runs]
    paths: Mapping[str, MetricPath]
    if wanted:
        paths = {text: require(text, known) for text in wanted}
    else:
        usual = {text: MetricPath.parse(text) for text in STANDARD}
        paths = {
            text: path
            for text, path in usual.items()
            if any(metrics.value(path) is not None for metrics in known)
        }
    rows: list[list[Any]] = []
    for index, entry in enumerate(runs):
        settings = [values[index] for values in columns.values()]
        rows.append([entry.label, *settings, *(cell_of(entry, path) for path in paths.values())])
    return Table(["run", *(".".join(path) for path in columns), *paths], rows)


class RunGroups(NamedTuple):
    """Rows of runs that differ in one value only, such as the seed.

    Arguments:
        shared, averaged: places of the columns that are equal in a group, and of its metrics.
        groups: places of the rows of each group.
    """

    shared: list[int]
    averaged: list[int]
    groups: list[list[int]]

    def labels(self, table: Table) -> Iterator[str]:
        """The values that distinguish each group."""
        for group in self.groups:
            cells = [(table.columns[place], table.rows[group[0]][place]) for place in self.shared]
            texts = [f"{name.rpartition('.')[2]}={cell}" for name, cell in cells if name != STEP]
            yield ",".join(texts) or f"mean of {plural(len(group), 'run')}"


def groups_over(table: Table, over: str, values: Collection[str]) -> RunGroups:
    """Group runs that differ in one value only, the column `over` of the configuration.

    Raises:
        SetpointError: the runs do not differ in that value.
    """
    differing_values = [name for name in table.columns if name in values]
    matches = [name for name in differing_values if name == over] or [
        name for name in differing_values if name.endswith(f".{over}")
    ]
    if len(matches) != 1:
        raise SetpointError(
            f"--over {over} does not name one value in which the runs differ."
            f"{did_you_mean(over, differing_values, ' ')}\n"
            f"Values that differ: {', '.join(differing_values) or 'none'}"
        )
    omitted = {0, table.columns.index(matches[0])}
    # Runs that ended at different steps are not averaged.
    shared = [
        place
        for place, name in enumerate(table.columns)
        if place not in omitted and (name in values or name == STEP)
    ]
    averaged = [place for place in range(len(table.columns)) if place not in {*omitted, *shared}]
    groups: dict[str, list[int]] = {}
    for number, row in enumerate(table.rows):
        groups.setdefault(repr([row[place] for place in shared]), []).append(number)
    return RunGroups(shared, averaged, [*groups.values()])


def average(table: Table, runs: RunGroups, notes: list[str]) -> Table:
    """Average the metrics of groups of runs.

    Arguments:
        notes: receives the runs that lack a metric which others of their group have.

    Returns:
        a row for each group: the number of runs, the values that they share, and the mean and
        standard deviation of each metric.
    """
    shared, averaged, groups = runs
    rows: list[list[Any]] = []
    for numbers in groups:
        group = [table.rows[number] for number in numbers]
        cells: list[Any] = [len(group), *(group[0][place] for place in shared)]
        for place in averaged:
            known = [row[place] for row in group if row[place] is not ABSENT]
            if 0 < len(known) < len(group):
                lacking = ", ".join(row[0] for row in group if row[place] is ABSENT)
                notes.append(
                    f"{table.columns[place]}: not recorded by {lacking}, so the mean is of "
                    f"{plural(len(known), 'run')}"
                )
            mean, deviation = mean_and_deviation(known) if known else (ABSENT, None)
            cells += [mean, ABSENT if deviation is None else deviation]
        rows.append(cells)
    names = [
        name for place in averaged for name in (table.columns[place], f"{table.columns[place]}.std")
    ]
    return Table(["runs", *(table.columns[place] for place in shared), *names], rows)


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation (Bessel's correction).

    Both are NaN if a value is not finite; the deviation of one value is None.
    """
    is_finite = all(map(isfinite, values))
    mean = fmean(values) if is_finite else nan
    if len(values) == 1:
        return mean, None
    return mean, stdev(values) if is_finite else nan
