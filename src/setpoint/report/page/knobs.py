"""Comparison of many runs by an objective, and the importance of the fields that differ."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .read import RunData

USUAL = ("evaluation.held_out_loss", "train.mean_loss")
FEWEST = 3
"""Runs that make a comparison."""
MOST_KNOBS = 12
"""Fields that are drawn as axes, the most important ones."""
LEVELS = 5
"""Groups that numbers are put into where there are more values."""

METHOD = (
    "Share of the variance of the objective's ranks between runs that one field explains alone: "
    "(H - k + 1) / (n - k), H being the statistic of Kruskal and Wallis (1952) over k groups of "
    "n runs (Tomczak and Tomczak, 2014); 0 is what chance gives. Numbers with many values form "
    f"up to {LEVELS} groups of equal size. Interactions are not seen, and fields that change "
    "together share their importance. A run whose objective is not finite ranks last."
)


class Objective(NamedTuple):
    """The metric that runs are compared by.

    Arguments:
        column: `KIND.COLUMN`.
        reduction: last, min, max or mean.
        minimize: whether less is better.
    """

    column: str
    reduction: str = "last"
    minimize: bool = True

    def of(self, run: RunData) -> float | None:
        """The value of a run, NaN if none of the rows has a finite one; None without any."""
        column = run.columns.get(self.column)
        if column is None or not column.values:
            return None
        if self.reduction == "last":
            return column.values[-1]
        known = [value for value in column.values if math.isfinite(value)]
        if not known:
            return math.nan
        if self.reduction == "mean":
            return math.fsum(known) / len(known)
        return min(known) if self.reduction == "min" else max(known)


def knobs_of(fields: Mapping[str, Sequence[Mapping[str, Any] | None]]) -> dict[str, list[Any]]:
    """The values of the fields in which runs differ, one a run: numbers, texts, or None.

    A field that goes with another one in all runs, as a seed that is an axis twice would, stays.
    """
    return {path: [_plain(each) for each in entries] for path, entries in fields.items()}


def _plain(entry: Mapping[str, Any] | None) -> Any:
    if entry is None:
        return None
    value = entry["value"]
    if isinstance(value, bool) or value is None:
        return str(value).lower().replace("none", "null")
    if isinstance(value, int | float):
        try:
            return float(value) if math.isfinite(value) else str(value)
        except OverflowError:
            return str(value)[:40]
    return str(value)[:200]


def sweep_of(
    runs: Sequence[RunData], knobs: Mapping[str, list[Any]], objective: Objective | None
) -> dict[str, Any] | None:
    """The comparison of many runs.

    Returns:
        objective, points in the order of the runs, and fields with their importance, the most
        important first; None if there are too few runs or nothing to compare them by.
    """
    if len(runs) < FEWEST or not knobs:
        return None
    for each in (objective,) if objective is not None else map(Objective, USUAL):
        values = [each.of(run) for run in runs]
        if any(value is not None for value in values):
            break
    else:
        return None
    at = [place for place, value in enumerate(values) if value is not None]
    known = [float(values[place] or 0.0) for place in at]
    ranks = ranked(known, each.minimize)
    axes = [
        {
            "path": path,
            "values": column,
            "importance": importance([column[place] for place in at], ranks),
        }
        for path, column in knobs.items()
    ]
    axes.sort(key=lambda axis: -(axis["importance"] or 0.0))
    name = each.column if each.reduction == "last" else f"{each.column}.{each.reduction}"
    return {
        "objective": name,
        "minimize": each.minimize,
        "values": [None if value is None or not math.isfinite(value) else value
                   for value in values],
        "not_finite": [value is not None and not math.isfinite(value) for value in values],
        "knobs": axes[:MOST_KNOBS],
        "left_out": len(axes) - MOST_KNOBS if len(axes) > MOST_KNOBS else 0,
        "method": METHOD,
    }  # fmt: skip


def ranked(values: Sequence[float], minimize: bool = True) -> list[float]:
    """Ranks from 1, the best first; equal values share the mean of theirs, others come last."""
    keys = [
        (value if minimize else -value) if math.isfinite(value) else math.inf for value in values
    ]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    ranks = [0.0] * len(keys)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and keys[order[end]] == keys[order[start]]:
            end += 1
        for place in order[start:end]:
            ranks[place] = (start + 1 + end) / 2
        start = end
    return ranks


def importance(values: Sequence[Any], ranks: Sequence[float]) -> float | None:
    """The share of the variance of ranks that groups of a field's values explain.

    With E = SSB / SST over the ranks H = (n - 1) E, so that (H - k + 1) / (n - k) is Kelley's
    epsilon squared (1935) of the ranks; less than 0 is shown as 0.

    Returns:
        the share; None where each run has a value of its own, or all have the same.
    """
    groups: dict[Any, list[float]] = {}
    for level, rank in zip(_levels(values), ranks, strict=True):
        groups.setdefault(level, []).append(rank)
    count, kinds = len(ranks), len(groups)
    if kinds < 2 or kinds >= count:
        return None
    mean = math.fsum(ranks) / count
    total = math.fsum((rank - mean) ** 2 for rank in ranks)
    if total == 0:
        return 0.0
    between = math.fsum(
        len(each) * (math.fsum(each) / len(each) - mean) ** 2 for each in groups.values()
    )
    statistic = (count - 1) * between / total
    return min(1.0, max(0.0, (statistic - kinds + 1) / (count - kinds)))


def _levels(values: Sequence[Any]) -> list[Any]:
    """Groups of values: themselves, or of many different numbers parts of equal size."""
    numbers = sorted(value for value in values if isinstance(value, float))
    distinct = len(set(numbers))
    if distinct <= LEVELS or 2 * distinct <= len(numbers):
        return list(values)
    parts = max(2, min(LEVELS, round(math.sqrt(len(numbers)))))
    edges = [numbers[part * len(numbers) // parts] for part in range(1, parts)]
    return [bisect_right(edges, value) if isinstance(value, float) else value for value in values]
