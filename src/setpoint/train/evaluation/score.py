"""Scores: how well a model predicts a text, and how that is written down."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from setpoint.config import RunError
from setpoint.loss.figures import bits_per_byte, perplexity
from setpoint.shapes.sequence_parts import WHOLE, SequenceParts
from setpoint.track.progress import Work, no_work

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from setpoint.data.evaluation import EvaluationFeed
    from setpoint.parallel.world import World
    from setpoint.shapes.batch import Batch, Count
    from setpoint.train.step.objective import Objective


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
        bytes: that the tokens stand for; 0: not known, since rows of metrics leave it out.
    """

    loss: float
    perplexity: float
    bits_per_byte: float
    tokens: int
    accuracy: float | None = None
    bytes: int = field(default=0, compare=False)

    @classmethod
    def of(cls, nats: float, tokens: int, size: int, correct: int | None = None) -> Score:
        """Compute the score from sums.

        Arguments:
            size: bytes that these stand for, above 0.
            correct: how many were the most probable ones; None: not counted.
        """
        loss, accuracy = nats / tokens, None if correct is None else correct / tokens
        return cls(loss, perplexity(loss), bits_per_byte(nats, size), tokens, accuracy, size)

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


def score_text(
    feed: EvaluationFeed,
    name: str,
    objective: Objective,
    token_bytes: npt.NDArray[np.int64],
    *,
    world: World,
    computing: Callable[[], AbstractContextManager[object]],
    sequence: SequenceParts = WHOLE,
    accuracy: bool = False,
    between: Callable[[], None] = lambda: None,
    show: Work = no_work,
) -> Score:
    """Evaluate a model as it stands on one text of a feed; each target counts once.

    Ranks divide the sequences among them; the score is that of all, on every rank.

    Arguments:
        token_bytes: (V,) bytes each token stands for.
        computing: opens the dtype of matrix products for a batch.
        between: called before each batch.

    Raises:
        RunError: none of the targets counts, or they stand for no bytes.
    """
    nats, correct, tokens, size, own, done = 0.0, 0, 0, 0, 0, 0
    total, what = feed.totals[name], f"evaluating {name}, sequences"
    show(what, 0, total)
    for batch in feed.batches(name):
        between()
        count = objective.count(batch)
        part, valid = sequence.cut(batch.to(world.device)), sequence.take_valid(count)
        with computing():
            if accuracy:
                sums = objective.evaluate(part, valid)
                right = int(sums.correct)
            else:
                sums, right = objective.sums(part), 0
        if own < feed.own(name):
            nats += float(sums.nats)
            correct += right
            tokens += count.targets
            size += _bytes(token_bytes, batch, count)
            own += len(batch.inputs)
        done = min(done + feed.together, total)
        show(what, done, total)
    nats, correct, tokens, size = _over_ranks(world, nats, correct, tokens, size)
    if not tokens:
        raise RunError(
            f"none of the targets of {name} counts: masks of the data, loss.ignore_index or "
            f"loss.token_weights leave all of them out; evaluate on more sequences or more text"
        )
    if not size:
        raise RunError(f"the {tokens} targets of {name} stand for no bytes; evaluate on more text")
    return Score.of(nats, tokens, size, correct if accuracy else None)


def _over_ranks(
    world: World, nats: float, correct: int, tokens: int, size: int
) -> tuple[float, int, int, int]:
    """The sums of all ranks, to which each gives what only it holds."""
    if world.size == 1:
        return nats, correct, tokens, size
    if not world.gives_loss:
        nats, correct = 0.0, 0
    if not world.gives_counts:
        tokens, size = 0, 0
    sums = torch.tensor((nats, correct, tokens, size), dtype=torch.float64, device=world.device)
    world.sum(sums)
    nats, *counts = sums.tolist()
    correct, tokens, size = map(int, counts)  # exact: fp64 counts to 2**53
    return nats, correct, tokens, size


def _bytes(token_bytes: npt.NDArray[np.int64], batch: Batch, count: Count) -> int:
    """The bytes that the targets which count stand for."""
    if count.valid is None:
        return batch.target_bytes
    return int(token_bytes[batch.targets[count.valid].numpy()].sum())


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
