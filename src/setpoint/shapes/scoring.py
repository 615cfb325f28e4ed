"""Score of a model on a text, from its summed cross-entropy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from setpoint.config import RunError, plural
from setpoint.shapes.batch import WHOLE, SequenceParts

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from setpoint.shapes.batch import Batch, Count


class EvalSums(NamedTuple):
    """Sums over the targets of a batch that have weight.

    Arguments:
        correct: int64 scalar, number of targets that were the most probable token; None: not
            counted.
    """

    nats: Tensor
    correct: Tensor | None


class TextFeed(Protocol):
    """Batches of texts by name; see `setpoint.data.loader.EvaluationFeed`."""

    @property
    def totals(self) -> Mapping[str, int]:
        """Number of sequences of each text in a pass, over all ranks."""
        ...

    @property
    def available(self) -> Mapping[str, int]:
        """Number of sequences in each text; a pass reads the first of them."""
        ...

    @property
    def global_batch_size(self) -> int:
        """Number of sequences in one batch on each of all ranks."""
        ...

    def local_count(self, name: str) -> int:
        """Number of a text's sequences counted by this rank: the first ones of its pass."""
        ...

    def batches(self, name: str) -> Iterator[Batch]:
        """Iterate once over a text."""
        ...


class EvalRanks(Protocol):
    """One process among those that evaluate; see `setpoint.parallel.world.World`."""

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        ...

    @property
    def size(self) -> int:
        """The number of ranks."""
        ...

    @property
    def gives_loss(self) -> bool:
        """True if this rank's loss enters sums over all ranks."""
        ...

    @property
    def gives_counts(self) -> bool:
        """True if this rank's counts enter sums over all ranks."""
        ...

    def sum(self, *tensors: Tensor) -> None:
        """Replace tensors by their sums over all ranks, in place."""


def perplexity(loss: float) -> float:
    """exp(loss) of a mean cross-entropy; infinity if a float cannot represent it."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def bits_per_byte(nats: float, size: int) -> float:
    """Bits per byte from a summed cross-entropy; `size` is the text's bytes, above 0."""
    return nats / math.log(2) / size


@dataclass(frozen=True, slots=True)
class Score:
    """Quality of a model's predictions on a text.

    Arguments:
        loss: mean cross-entropy of the targets with weight, in nats, whatever is minimized.
        perplexity: exp(loss).
        bits_per_byte: bits of these targets, separators included, per byte of text.
        tokens: number of these targets.
        sequences: number of sequences with these targets, from the start of the text.
        total_sequences: sequences of the full text.
        accuracy: fraction of targets that were the most probable token; None: not counted.
        bytes: bytes of these targets; 0 if unknown, because metric rows do not contain them.
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
        """The part of the text that was evaluated: `64 of 1,234 sequences`."""
        is_all, total = self.sequences == self.total_sequences, self.total_sequences
        part = f"{self.sequences:,} of " if not is_all else "all " if total > 1 else ""
        return f"{part}{plural(total, 'sequence')}"

    def metric(self, name: str) -> float:
        """One field of the score, named as in `evaluation.best.metric`."""
        value = getattr(self, name)
        assert value is not None, "the configuration is refused otherwise"
        return value

    def format_line(self) -> str:
        """Format the score as one line."""
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

    Ranks divide the sequences among themselves; every rank gets the score over all of them.

    Arguments:
        count: counts the values of a batch by which the loss is divided.
        sums: runs the model on this rank's part of a batch, given which of its targets count.
        token_bytes: (V,) bytes per token.
        between: called before each batch.

    Raises:
        RunError: no target has weight, or the targets with weight have no bytes.
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
            f"loss.token_weights exclude all of them; evaluate on more sequences or more text"
        )
    if not size:
        raise RunError(
            f"the {tokens} targets of {name} correspond to no bytes; evaluate on more text"
        )
    correct = correct if counts_correct else None
    return Score.of(nats, tokens, size, total, feed.available[name], correct)


def _sum_over_ranks(
    ranks: EvalRanks, nats: float, correct: int, tokens: int, size: int
) -> tuple[float, int, int, int]:
    """Sum over all ranks; each contributes only what no other rank has."""
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
