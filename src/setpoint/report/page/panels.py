"""Panels of metric curves, thinned without losing extremes, and runs ranked by an objective."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from setpoint.report.page.run_data import Column, RunData, json_number

POINTS = 400_000
"""Maximum number of points of a report, about 20 bytes each."""
MOST, LEAST = 1500, 40
"""Maximum number of parts of a curve, each reduced to its minimum and maximum."""

X_COLUMNS = frozenset(("step", "tokens", "epoch", "seconds"))
"""Columns for the x axis."""

MAIN = (
    ("Loss", ("train.mean_loss",), ("evaluation.", "_loss")),
    ("Learning rate", ("train.lr",), ("train.lr_", "")),
    ("Gradient norm", ("train.grad_norm",), None),
    ("Tokens per second", ("train.tokens_per_second",), None),
)
"""First panels: title, columns, and prefix and suffix of further columns."""

GROUPS = (
    "train.grad_norm_",
    "train.sequences_",
    "train.target_tokens_",
    "train.cross_entropy_",
    "train.expert_load.",
    "train.share_",
    "train.seconds_",
    "train.param_norm",
    "train.update_ratio",
)
"""Prefixes of columns that share a panel."""


def parts_for(runs: Sequence[RunData]) -> int:
    """Number of parts of a thinned curve, chosen to limit the size of the report."""
    curves = sum(len(run.columns) for run in runs) or 1
    return max(LEAST, min(MOST, POINTS // (2 * curves)))


def thinned(column: Column, parts: int) -> dict[str, Any]:
    """A curve thinned to about `2 * parts` points, with the extremes of each part.

    Returns:
        `at`, the kept rows, and `y`, their values, non-finite ones as
        text; if points were dropped also `mean`, the mean of each part, and `mean_at`, its
        last row; `count` of all values, and of `not_finite` ones.
    """
    rows, values = column.rows, column.values
    count = len(values)
    bad = sum(not math.isfinite(value) for value in values)
    facts: dict[str, Any] = {"count": count, **({"not_finite": bad} if bad else {})}
    if count <= 2 * parts:
        return {"at": list(rows), "y": [json_number(value) for value in values], **facts}
    chosen: list[int] = []
    means: list[float | None] = []
    ends: list[int] = []
    for part in range(parts):
        start, end = part * count // parts, (part + 1) * count // parts
        window = values[start:end]
        kept: set[int] = set()
        known = window
        if bad:
            places = [place for place, value in enumerate(window) if math.isfinite(value)]
            if len(places) < len(window):  # the first non-finite value of any kind
                kept.add(next(p for p, v in enumerate(window) if not math.isfinite(v)))
            known = [window[place] for place in places]
        if known:
            kept.add(window.index(min(known)))
            kept.add(window.index(max(known)))
            means.append(math.fsum(known) / len(known))
            ends.append(rows[end - 1])
        chosen += [start + place for place in sorted(kept)]
    # The first and the last value matter to readers.
    chosen = sorted({0, count - 1, *chosen})
    return {
        "at": [rows[place] for place in chosen],
        "y": [json_number(values[place]) for place in chosen],
        "mean_at": ends,
        "mean": means,
        **facts,
    }


def is_curve(name: str) -> bool:
    """True if a column is drawn, being neither an axis nor the extent of the evaluated text."""
    is_extent = name.startswith("evaluation.") and name.endswith("_sequences")
    return name.rpartition(".")[2] not in X_COLUMNS and not is_extent


def curves_of(run: RunData, parts: int) -> dict[str, Any]:
    """The curves of a run by name; `at` are indices into the kept `step`, `tokens` and `time`."""
    curves = {name: thinned(column, parts) for name, column in run.columns.items()
              if is_curve(name)}  # fmt: skip
    kept = sorted({row for curve in curves.values() for key in ("at", "mean_at")
                   for row in curve.get(key, ())})  # fmt: skip
    place = {row: index for index, row in enumerate(kept)}
    for curve in curves.values():
        for key in ("at", "mean_at"):
            if key in curve:
                curve[key] = [place[row] for row in curve[key]]
    axes = {"step": run.steps, "tokens": run.tokens, "time": run.seconds}
    return {
        "x": {
            name: [json_number(xs[row]) if math.isfinite(xs[row]) else None for row in kept]
            for name, xs in axes.items()
        },
        "curves": curves,
    }


def panels(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """Panels of curves, the main ones first."""
    names: dict[str, None] = {}
    for run in runs:
        for name, column in run.columns.items():
            if len(column.values) and is_curve(name):
                names[name] = None
    result: list[dict[str, Any]] = []

    def add(title: str, columns: Iterable[str], is_main: bool) -> None:
        present = [name for name in columns if name in names]
        for name in present:
            del names[name]
        if present:
            result.append({"title": title, "columns": present, "main": is_main})

    for title, columns, more in MAIN:
        more_columns = () if more is None else [
            name for name in names if name.startswith(more[0]) and name.endswith(more[1])
        ]  # fmt: skip
        add(title, dict.fromkeys([*columns, *more_columns]), True)
    for prefix in GROUPS:
        add(f"{prefix.rstrip('_.')} by part", [n for n in names if n.startswith(prefix)], False)
    for name in list(names):
        add(name, [name], False)
    return result


USUAL = ("evaluation.held_out_loss", "train.mean_loss")
FEWEST = 3
"""Minimum number of runs of a comparison."""
MOST_KNOBS = 12
"""Maximum number of fields drawn as axes."""
LEVELS = 5
"""Number of groups of a field with many numeric values."""

METHOD = (
    "Share of the variance of the objective's ranks between runs that one field explains alone: "
    "(H - k + 1) / (n - k), H being the statistic of Kruskal and Wallis (1952) over k groups of "
    "n runs (Tomczak and Tomczak, 2014); 0 is what chance gives. Numbers with many values form "
    f"up to {LEVELS} groups of equal size. Interactions are not seen, and fields that change "
    "together share their importance. A run whose objective is not finite ranks last."
)


class RunObjective(NamedTuple):
    """The metric for comparing runs: `KIND.COLUMN` with last, min, max or mean."""

    column: str
    reduction: str = "last"
    minimize: bool = True

    def of(self, run: RunData) -> float | None:
        """The value of a run; NaN if no row has a finite one, None without any rows."""
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
    """The values of differing fields, one per run: numbers, strings or None.

    Fields that vary together, such as a seed that is two axes, all stay.
    """
    return {path: [_plain(entry) for entry in entries] for path, entries in fields.items()}


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
    runs: Sequence[RunData], knobs: Mapping[str, list[Any]], objective: RunObjective | None
) -> dict[str, Any] | None:
    """The comparison of many runs.

    Returns:
        objective, points in the order of the runs, and fields by decreasing importance; None if
        there are too few runs or no metric.
    """
    if len(runs) < FEWEST or not knobs:
        return None
    for candidate in (objective,) if objective is not None else map(RunObjective, USUAL):
        values = [candidate.of(run) for run in runs]
        if any(value is not None for value in values):
            break
    else:
        return None
    places = [place for place, value in enumerate(values) if value is not None]
    known = [float(values[place] or 0.0) for place in places]
    ranks = ranked(known, candidate.minimize)
    axes = [
        {
            "path": path,
            "values": column,
            "importance": importance([column[place] for place in places], ranks),
        }
        for path, column in knobs.items()
    ]
    axes.sort(key=lambda axis: -(axis["importance"] or 0.0))
    name = (
        candidate.column
        if candidate.reduction == "last"
        else f"{candidate.column}.{candidate.reduction}"
    )
    return {
        "objective": name,
        "minimize": candidate.minimize,
        "values": [None if value is None or not math.isfinite(value) else value
                   for value in values],
        "not_finite": [value is not None and not math.isfinite(value) for value in values],
        "knobs": axes[:MOST_KNOBS],
        "left_out": len(axes) - MOST_KNOBS if len(axes) > MOST_KNOBS else 0,
        "method": METHOD,
    }  # fmt: skip


def ranked(values: Sequence[float], minimize: bool = True) -> list[float]:
    """Ranks from 1, best first; ties share their mean rank, non-finite values come last."""
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
    """The share of rank variance explained by groups of a field's values.

    With E = SSB / SST over the ranks, H = (n - 1) E, so that (H - k + 1) / (n - k) is Kelley's
    epsilon squared (1935) of the ranks; negative values are shown as 0.

    Returns:
        the share; None if all values are distinct or equal.
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
        len(group) * (math.fsum(group) / len(group) - mean) ** 2 for group in groups.values()
    )
    statistic = (count - 1) * between / total
    return min(1.0, max(0.0, (statistic - kinds + 1) / (count - kinds)))


def _levels(values: Sequence[Any]) -> list[Any]:
    """Groups of values: one per value, or of equal size for many distinct numbers."""
    numbers = sorted(value for value in values if isinstance(value, float))
    distinct = len(set(numbers))
    if distinct <= LEVELS or 2 * distinct <= len(numbers):
        return list(values)
    parts = max(2, min(LEVELS, round(math.sqrt(len(numbers)))))
    edges = [numbers[part * len(numbers) // parts] for part in range(1, parts)]
    return [bisect_right(edges, value) if isinstance(value, float) else value for value in values]
