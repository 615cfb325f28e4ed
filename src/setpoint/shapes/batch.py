"""What goes from the data to the model and its loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import pad

IGNORE_INDEX: Final = -100
"""The target of a position that takes no part in the loss; PyTorch's own default."""


@dataclass(frozen=True, slots=True, eq=False)
class Lengths:
    """Lengths of the documents in the rows of a batch, in order, as the host knows them.

    Padding is at the end of a row and counts as one more document, so that those of a row add up
    to S. Kernels for sequences of any length take them in place of a mask.

    Arguments:
        starts: (N + 1,) int32, the first place of each document among the B * S of all rows, and
            B * S; stays on the host.
        cumulative: the same, where the batch is.
    """

    starts: npt.NDArray[np.int32]
    cumulative: torch.Tensor

    @classmethod
    def of(cls, starts: npt.NDArray[Any]) -> Lengths:
        """From the starts alone."""
        starts = starts.astype(np.int32)
        return cls(starts, torch.from_numpy(starts))

    @classmethod
    def of_runs(cls, numbers: npt.NDArray[Any]) -> Lengths:
        """From (B, S) numbers that are equal within a document and differ from its neighbours'."""
        begins = np.ones(numbers.shape, np.bool_)
        np.not_equal(numbers[:, 1:], numbers[:, :-1], out=begins[:, 1:])
        return cls.of(np.append(np.flatnonzero(begins), numbers.size))

    @classmethod
    def of_places(
        cls, positions: torch.Tensor | None, documents: torch.Tensor | None
    ) -> Lengths | None:
        """From what a batch on the host says, with padding at the end of rows."""
        if documents is None:
            documents = None if positions is None else positions < 0
        return None if documents is None else cls.of_runs(documents.numpy())

    @property
    def longest(self) -> int:
        """Places of the longest document."""
        return int(np.diff(self.starts).max())

    def padded(self, rows: int, missing: int) -> Lengths:
        """With some places of padding more at the end of each of the rows."""
        width = int(self.starts[-1]) // rows
        # A row's new padding begins where the row ended, which is where the next one began.
        moved = self.starts + self.starts // width * missing
        ends = np.arange(1, rows + 1) * (width + missing)
        starts = np.union1d(moved, np.append(ends, ends - missing))
        return Lengths.of(starts).to(self.cumulative.device)

    def to(self, device: torch.device) -> Lengths:
        """Move what a kernel reads, without waiting."""
        return replace(self, cumulative=self.cumulative.to(device, non_blocking=True))

    def pin_memory(self) -> Lengths:
        """See `Batch.pin_memory`."""
        return replace(self, cumulative=self.cumulative.pin_memory())


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Sequences side by side: what goes in, and what comes one token later.

    Arguments:
        inputs: (B, S) int64 tokens.
        targets: (B, S) int64; `IGNORE_INDEX` where nothing is to be predicted.
        tokens: how many tokens the model reads, padding left out.
        target_tokens: how many targets are not marked with `IGNORE_INDEX`.
        target_bytes: how many bytes those stand for. A separator is predicted but is no byte:
            bits per byte = sum of -log2 p over `target_tokens` / `target_bytes`.
        weights: (B, S) fp32, how much each target weighs in the loss; a target that weighs 0 does
            not count. None: all weigh 1.
        positions: (B, S) integers, negative for padding that no token is to see. None: 0 .. S - 1;
            padding is at the end then, where causal attention hides it.
        documents: (B, S) integers; a token sees those of its own document only. None: all.
        lengths: of the documents, or where these are not told apart of what comes before padding.
            None: all rows are whole, or the lengths are unknown.
        source: (B,) int64, which of the sources of the data each row is from; stays on the host.
            None: it is not known.
        sources: (B, S) int64, which of them each target is from; stays on the host. None: all of
            a row are from that of the row.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    tokens: int
    target_tokens: int
    target_bytes: int
    weights: torch.Tensor | None = None
    positions: torch.Tensor | None = None
    documents: torch.Tensor | None = None
    lengths: Lengths | None = None
    source: torch.Tensor | None = None
    sources: torch.Tensor | None = None

    def to(self, device: torch.device) -> Batch:
        """Move the tensors, which the model and its loss read."""
        tensors = {name: getattr(self, name) for name in TENSORS}
        # From memory that is not pinned the host waits all the same.
        ahead = device.type == "cuda"
        moved = {
            name: each.to(device, non_blocking=ahead)
            for name, each in tensors.items()
            if each is not None
        }
        lengths = None if self.lengths is None else self.lengths.to(device)
        return replace(self, **moved, lengths=lengths)

    def padded(self, missing: int) -> Batch:
        """Rows that are longer by some places at their end, which count nowhere."""
        if not missing:
            return self
        ends = {**PADDING, "sources": 0}  # of targets that do not count
        longer = {
            name: pad(tensor, (0, missing), value=end)
            for name, end in ends.items()
            if (tensor := getattr(self, name)) is not None
        }
        rows = self.inputs.shape[0]
        lengths = None if self.lengths is None else self.lengths.padded(rows, missing)
        return replace(self, **longer, lengths=lengths)

    def pin_memory(self) -> Batch:
        """Copy the tensors to where a GPU reads them while it computes."""
        tensors = {name: getattr(self, name) for name in TENSORS}
        pinned = {name: each.pin_memory() for name, each in tensors.items() if each is not None}
        lengths = None if self.lengths is None else self.lengths.pin_memory()
        return replace(self, **pinned, lengths=lengths)


TENSORS = ("inputs", "targets", "weights", "positions", "documents")
# What stands behind the end of a row.
PADDING = {"inputs": 0, "targets": IGNORE_INDEX, "weights": 0, "positions": -1, "documents": -1}


class Count(NamedTuple):
    """What of a batch counts, in three ways.

    Arguments:
        tokens: that the model reads, without padding, whatever their targets weigh. Durations,
            schedules and throughput are counted in these, and what the model adds to the loss is a
            mean over them.
        targets: that count; the cross-entropy is a mean over these.
        weight: of these targets; the loss is divided by it.
        valid: (B, S) which targets count; None: all that the data marks.
    """

    tokens: int
    targets: int
    weight: float
    valid: torch.Tensor | None = None


class BySource(NamedTuple):
    """What of a step is from each of several sources; empty where there is one.

    Arguments:
        sequences: how many of the batch.
        targets: that count.
        nats: sums of the cross-entropy over these; empty where the loss gives no single tokens.
    """

    sequences: tuple[int, ...] = ()
    targets: tuple[int, ...] = ()
    nats: tuple[float, ...] = ()


ONE_SOURCE: Final = BySource()


class StepBatch(NamedTuple):
    """The micro-batches of one step of this rank.

    Arguments:
        counts: what counts of each micro-batch.
        whole: what counts of all of them.
        by_source: what is counted of each source.
    """

    batches: Sequence[Batch]
    counts: Sequence[Count]
    whole: Count
    by_source: BySource = ONE_SOURCE


def total_count(counts: Sequence[Count]) -> Count:
    """Add up the counts of micro-batches."""
    return Count(
        tokens=sum(count.tokens for count in counts),
        targets=sum(count.targets for count in counts),
        weight=sum(count.weight for count in counts),
    )
