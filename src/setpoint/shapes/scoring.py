"""Score of a model on a text, from the sum of its cross-entropy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from setpoint.config import RunError
from setpoint.shapes.batch import WHOLE, SequenceParts

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from setpoint.shapes.batch import Batch, Count


class EvalSums(NamedTuple):
    """Sums over the targets of a batch that count.

    Arguments:
        correct: int64 scalar, number of most probable targets; None: not counted.
    """

    nats: Tensor
    correct: Tensor | None


class TextFeed(Protocol):
    """Batches of texts by name; see `setpoint.data.evaluation.EvaluationFeed`."""

    @property
    def totals(self) -> Mapping[str, int]:
        """Sequences of each text in a pass, over all ranks."""
        ...

    @property
    def available(self) -> Mapping[str, int]:
        """Sequences that each text has, of which a pass reads the first."""
        ...

    @property
    def global_batch_size(self) -> int:
        """Sequences that one batch of each rank makes up."""
        ...

    def local_count(self, name: str) -> int:
        """Sequences of a text that this rank counts, which are the first of its pass."""
        ...

    def batches(self, name: str) -> Iterator[Batch]:
        """A pass over a text."""
        ...


class EvalRanks(Protocol):
    """The process among those that evaluate; see `setpoint.parallel.world.World`."""

    @property
    def device(self) -> torch.device:
        """Of the model."""
        ...

    @property
    def size(self) -> int:
        """The number of ranks."""
        ...

    @property
    def gives_loss(self) -> bool:
        """True if the loss of this rank enters sums over all."""
        ...

    @property
    def gives_counts(self) -> bool:
        """True if the counts of this rank enter sums over all."""
        ...

    def sum(self, *tensors: Tensor) -> None:
        """Replace tensors by their sums over all ranks, in place."""


def perplexity(loss: float) -> float:
    """exp(loss) of a mean cross-entropy; infinity where no float holds it."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def bits_per_byte(nats: float, size: int) -> float:
    """Bits per byte of a sum of cross-entropy; `size` is the bytes of the text, above 0."""
    return nats / math.log(2) / size


@dataclass(frozen=True, slots=True)
class Score:
    """Quality of a model's predictions of a text.

    Arguments:
        loss: mean cross-entropy of the targets that count, in nats, whatever is minimized.
        perplexity: exp(loss).
        bits_per_byte: bits of these targets, separators included, per byte of text.
        tokens: number of these targets.
        sequences: number of sequences with these targets, from the start of the text.
        total_sequences: sequences of the full text.
        accuracy: share of most probable targets; None: not counted.
        bytes: bytes of these targets; 0 if unknown, since rows of metrics lack it.
    """

    loss: float
    perplexity: float
    bits_per_byte: float
    tokens: int
    sequences: int
    total_sequences: int
    accuracy: float | None = None
    bytes: int = field(default=0, compare=False)

    @classmethod
    def of(
        cls,
        nats: float,
        tokens: int,
        size: int,
        sequences: int,
        total_sequences: int,
        correct: int | None = None,
    ) -> Score:
        """Compute the score from sums; `size` is in bytes, above 0."""
        loss, accuracy = nats / tokens, None if correct is None else correct / tokens
        bits = bits_per_byte(nats, size)
        counts = tokens, sequences, total_sequences
        return cls(loss, perplexity(loss), bits, *counts, accuracy, size)

    @property
    def extent(self) -> str:
        """Part of the text that was evaluated: `64 of 1,234 sequences`."""
        part = "all" if self.sequences == self.total_sequences else f"{self.sequences:,} of"
        return f"{part} {self.total_sequences:,} sequence{'s' * (self.total_sequences != 1)}"

    def metric(self, name: str) -> float:
        """One of the figures, named as in `evaluation.best.metric`."""
        value = getattr(self, name)
        assert value is not None, "the configuration is refused otherwise"
        return value

    def format_line(self) -> str:
        """Format the score."""
        text = f"loss {self.loss:.4f}, {self.bits_per_byte:.4f} bits per byte"
        if self.accuracy is not None:
            text += f", accuracy {self.accuracy:.4f}"
        return f"{text} ({self.extent}, {self.tokens:,} tokens)"


def score_text(
    feed: TextFeed,
    name: str,
    *,
    count: Callable[[Batch], Count],
    sums: Callable[[Batch, Tensor | None], EvalSums],
    token_bytes: npt.NDArray[np.int64],
    ranks: EvalRanks,
    sequence: SequenceParts = WHOLE,
    between: Callable[[], None] = lambda: None,
    show: Callable[[str, int, int | None], None] = lambda label, done, total: None,
) -> Score:
    """Evaluate the current model on one text of a feed; each target counts once.

    Ranks divide the sequences among them; the score is that of all, on every rank.

    Arguments:
        count: counts the values of a batch by which the loss is divided.
        sums: runs the model on this rank's part of a batch, given which of its targets count.
        token_bytes: (V,) bytes per token.
        between: called before each batch.

    Raises:
        RunError: no target counts, or those that count have no bytes.
    """
    nats, correct, tokens, size, sequences, done = 0.0, 0, 0, 0, 0, 0
    counts_correct = False
    total, label = feed.totals[name], f"evaluating {name}, sequences"
    show(label, 0, total)
    for batch in feed.batches(name):
        between()
        counted = count(batch)
        part, valid = sequence.cut(batch.to(ranks.device)), sequence.take_valid(counted)
        part_sums = sums(part, valid)
        counts_correct = part_sums.correct is not None
        if sequences < feed.local_count(name):
            nats += float(part_sums.nats)
            correct += 0 if part_sums.correct is None else int(part_sums.correct)
            tokens += counted.targets
            if counted.valid is None:
                size += batch.target_bytes
            else:
                size += int(token_bytes[batch.targets[counted.valid].numpy()].sum())
            sequences += len(batch.inputs)
        done = min(done + feed.global_batch_size, total)
        show(label, done, total)
    nats, correct, tokens, size = _sum_over_ranks(ranks, nats, correct, tokens, size)
    if not tokens:
        raise RunError(
            f"none of the targets of {name} counts: masks of the data, loss.ignore_index or "
            f"loss.token_weights leave all of them out; evaluate on more sequences or more text"
        )
    if not size:
        raise RunError(f"the {tokens} targets of {name} stand for no bytes; evaluate on more text")
    correct = correct if counts_correct else None
    return Score.of(nats, tokens, size, total, feed.available[name], correct)


def _sum_over_ranks(
    ranks: EvalRanks, nats: float, correct: int, tokens: int, size: int
) -> tuple[float, int, int, int]:
    """Sums over all ranks, each of which contributes what only it holds."""
    if ranks.size == 1:
        return nats, correct, tokens, size
    if not ranks.gives_loss:
        nats, correct = 0.0, 0
    if not ranks.gives_counts:
        tokens, size = 0, 0
    sums = torch.tensor((nats, correct, tokens, size), dtype=torch.float64, device=ranks.device)
    ranks.sum(sums)
    nats, *counts = sums.tolist()
    correct, tokens, size = map(int, counts)  # exact: fp64 counts to 2**53
    return nats, correct, tokens, size
