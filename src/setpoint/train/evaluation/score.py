"""Scores in rows of metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from setpoint.shapes.scoring import Score, perplexity

Scores = dict[str, Score]
"""The score of each data set by its name, held-out text first."""


def row_of(scores: Mapping[str, Score]) -> dict[str, float | int]:
    """Write scores as a part of a row of metrics.

    Returns:
        numbers by name: `held_out_loss` and so on.
    """
    return {
        f"{name}_{metric}": value
        for name, score in scores.items()
        for metric, value in _figures(score)
    }


def scores_in(row: Mapping[str, Any]) -> Scores:
    """Read scores back from a row of metrics.

    Returns:
        the scores; of rows without any, none.
    """
    found: Scores = {}
    for key in row:
        name = key.removesuffix("_bits_per_byte")
        if name != key:
            loss, bits, tokens = (row[f"{name}_{m}"] for m in ("loss", "bits_per_byte", "tokens"))
            found[name] = Score(loss, perplexity(loss), bits, tokens, row.get(f"{name}_accuracy"))
    return found


def _figures(score: Score) -> Iterator[tuple[str, float | int]]:
    for name in ("loss", "perplexity", "bits_per_byte", "tokens", "accuracy"):
        value = getattr(score, name)
        if value is not None:
            yield name, value
