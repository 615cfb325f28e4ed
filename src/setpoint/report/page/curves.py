"""Metrics as curves: thinned without losing extremes, and put together into panels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from .read import Column, RunData, json_number

POINTS = 400_000
"""Of all curves of a report together, about 20 bytes each."""
MOST, LEAST = 1500, 40
"""Parts of one curve, each of which keeps its smallest and its largest value."""

X_COLUMNS = frozenset(("step", "tokens", "epoch", "seconds"))
"""Columns that a curve is drawn over."""

MAIN = (
    ("Loss", ("train.mean_loss",), ("evaluation.", "_loss")),
    ("Learning rate", ("train.lr",), ("train.lr_", "")),
    ("Gradient norm", ("train.grad_norm",), None),
    ("Tokens per second", ("train.tokens_per_second",), None),
)
"""Panels that are shown first: title, columns, and prefix and suffix of further columns."""

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
"""Prefixes of columns that are drawn together."""


def parts_for(runs: Sequence[RunData]) -> int:
    """Number of parts of a thinned curve, so that the report keeps its size."""
    curves = sum(len(run.columns) for run in runs) or 1
    return max(LEAST, min(MOST, POINTS // (2 * curves)))


def thinned(column: Column, parts: int) -> dict[str, Any]:
    """A curve of at most about `2 * parts` points that holds each part's extremes.

    Returns:
        `at`, the rows that are kept, and `y`, their values, with values that are not finite as
        text; of a curve that lost points also `mean`, the mean of each part, and `mean_at`, its
        last row; `count`, how many values there were, and `not_finite` of them.
    """
    rows, values = column.rows, column.values
    count = len(values)
    bad = sum(not math.isfinite(value) for value in values)
    facts: dict[str, Any] = {"count": count, **({"not_finite": bad} if bad else {})}
    if count <= 2 * parts:
        return {"at": list(rows), "y": [json_number(value) for value in values], **facts}
    at: list[int] = []
    means: list[float | None] = []
    ends: list[int] = []
    for part in range(parts):
        start, end = part * count // parts, (part + 1) * count // parts
        window = values[start:end]
        kept: set[int] = set()
        known = window
        if bad:
            places = [place for place, value in enumerate(window) if math.isfinite(value)]
            if len(places) < len(window):  # the first that is not finite, whichever it is
                kept.add(next(p for p, v in enumerate(window) if not math.isfinite(v)))
            known = [window[place] for place in places]
        if known:
            kept.add(window.index(min(known)))
            kept.add(window.index(max(known)))
            means.append(math.fsum(known) / len(known))
            ends.append(rows[end - 1])
        at += [start + place for place in sorted(kept)]
    # The first and the last value are what people read off.
    at = sorted({0, count - 1, *at})
    return {
        "at": [rows[place] for place in at],
        "y": [json_number(values[place]) for place in at],
        "mean_at": ends,
        "mean": means,
        **facts,
    }


def curves_of(run: RunData, parts: int) -> dict[str, Any]:
    """All curves of a run, with the steps, tokens and seconds of the rows that they keep.

    Returns:
        `curves` by name, whose `at` are places in `step`, `tokens` and `time`.
    """
    curves = {name: thinned(column, parts) for name, column in run.columns.items()
              if name.rpartition(".")[2] not in X_COLUMNS}  # fmt: skip
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
    """Panels of curves that are drawn together, the main ones first."""
    names: dict[str, None] = {}
    for run in runs:
        for name, column in run.columns.items():
            if len(column.values) and name.rpartition(".")[2] not in X_COLUMNS:
                names[name] = None
    found: list[dict[str, Any]] = []

    def add(title: str, columns: Iterable[str], is_main: bool) -> None:
        here = [name for name in columns if name in names]
        for name in here:
            del names[name]
        if here:
            found.append({"title": title, "columns": here, "main": is_main})

    for title, columns, more in MAIN:
        others = () if more is None else [
            name for name in names if name.startswith(more[0]) and name.endswith(more[1])
        ]  # fmt: skip
        add(title, dict.fromkeys([*columns, *others]), True)
    for prefix in GROUPS:
        add(f"{prefix.rstrip('_.')} by part", [n for n in names if n.startswith(prefix)], False)
    for name in list(names):
        add(name, [name], False)
    return found
