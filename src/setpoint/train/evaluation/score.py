"""How well a model predicts a text, and how that is written down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from setpoint.loss.figures import bits_per_byte, perplexity


@dataclass(frozen=True, slots=True)
class Score:
    """How well a model predicts a text.

    Arguments:
        loss: mean cross-entropy over the tokens that count, in nats, whatever is minimized.
        perplexity: exp(loss), as it is, without an upper limit.
        bits_per_byte: all bits, those of separators too, over the bytes of the text; of what
            counts.
        tokens: tokens that were predicted and count.
        accuracy: share of these whose most probable token was the right one; None: not counted.
    """

    loss: float
    perplexity: float
    bits_per_byte: float
    tokens: int
    accuracy: float | None = None

    @classmethod
    def of(cls, nats: float, tokens: int, size: int, correct: int | None = None) -> Score:
        """Compute the score from sums.

        Arguments:
            size: bytes that these stand for, above 0.
            correct: how many were the most probable ones; None: not counted.
        """
        loss, accuracy = nats / tokens, None if correct is None else correct / tokens
        return cls(loss, perplexity(loss), bits_per_byte(nats, size), tokens, accuracy)

    def metric(self, name: str) -> float:
        """One of the figures.

        Arguments:
            name: as `evaluation.best.metric` has it.
        """
        value = getattr(self, name)
        assert value is not None, "the configuration is refused otherwise"
        return value

    def format_line(self) -> str:
        """The score for people."""
        text = f"loss {self.loss:.4f}, {self.bits_per_byte:.4f} bits per byte"
        return text if self.accuracy is None else f"{text}, accuracy {self.accuracy:.4f}"


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
