"""Batches, from the data to the model and its loss, and the part of a batch that a rank has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.functional import pad

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

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
            name: tensor.to(device, non_blocking=ahead)
            for name, tensor in tensors.items()
            if tensor is not None
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
        pinned = {
            name: tensor.pin_memory() for name, tensor in tensors.items() if tensor is not None
        }
        lengths = None if self.lengths is None else self.lengths.pin_memory()
        return replace(self, **pinned, lengths=lengths)


TENSORS = ("inputs", "targets", "weights", "positions", "documents")
# What stands behind the end of a row.
PADDING = {"inputs": 0, "targets": IGNORE_INDEX, "weights": 0, "positions": -1, "documents": -1}


class Count(NamedTuple):
    """Counts of a batch: tokens, targets and their weight.

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
    """Counts of a step by data source; empty for a single source.

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
        rank_total: what counts of all of them.
        by_source: what is counted of each source.
    """

    batches: Sequence[Batch]
    counts: Sequence[Count]
    rank_total: Count
    by_source: BySource = ONE_SOURCE


def total_count(counts: Sequence[Count]) -> Count:
    """Add up the counts of micro-batches."""
    return Count(
        tokens=sum(count.tokens for count in counts),
        targets=sum(count.targets for count in counts),
        weight=sum(count.weight for count in counts),
    )


Split = Literal["zigzag", "contiguous"]


@dataclass(frozen=True, slots=True)
class SequenceParts:
    """The places of each sequence that a rank has.

    The ring divides a sequence first: into one run of places a rank, or, as later places attend to
    more keys than earlier ones, into two runs of which one is as far from the end as the other is
    from the beginning. Ulysses then cuts what a rank of the ring has into runs of equal length.

    Arguments:
        ring, ulysses: how many ranks divide a sequence, in all ring * ulysses.
        ring_rank, ulysses_rank: of this process among them.
    """

    ring: int = 1
    ulysses: int = 1
    ring_rank: int = 0
    ulysses_rank: int = 0
    split: Split = "zigzag"

    @property
    def size(self) -> int:
        """The number of ranks that divide a sequence."""
        return self.ring * self.ulysses

    @property
    def rank(self) -> int:
        """The number of this process among them."""
        return self.ring_rank * self.ulysses + self.ulysses_rank

    @property
    def runs(self) -> int:
        """The number of runs of places on a rank of the ring."""
        return 2 if self.ring > 1 and self.split == "zigzag" else 1

    def ring_part(self, length: int, rank: int) -> list[slice]:
        """The places of one rank of the ring, in order.

        Arguments:
            length: of the whole sequence, a multiple of ring * runs.
        """
        run = length // (self.ring * self.runs)
        firsts = [rank] if self.runs == 1 else [rank, 2 * self.ring - 1 - rank]
        return [slice(first * run, (first + 1) * run) for first in firsts]

    def take(self, tensor: Tensor, dim: int = 1) -> Tensor:
        """This rank's part of a tensor with all places in one dimension."""
        length = tensor.shape[dim]
        runs = self.ring_part(length, self.ring_rank)
        part = [tensor.narrow(dim, run.start, run.stop - run.start) for run in runs]
        whole = part[0] if len(part) == 1 else torch.cat(part, dim)
        share = length // self.size
        return whole.narrow(dim, self.ulysses_rank * share, share)

    def cut(self, batch: Batch) -> Batch:
        """This rank's part of a batch that all ranks of the sequence have read.

        Rows whose length does not divide are padded at the end.

        Returns:
            inputs, targets, weights and sources of this rank's places; positions, documents and
            lengths stay those of whole rows, as attention asks for the places of others too; and
            so do the counts.
        """
        if self.size == 1:
            return batch
        batch = _padded(batch, self.size * self.runs)
        parts = {
            name: self.take(value).contiguous()
            for name in ("inputs", "targets", "weights", "sources")
            if (value := getattr(batch, name)) is not None
        }
        return replace(batch, **parts)

    def take_valid(self, count: Count) -> Tensor | None:
        """This rank's part of the mask of targets that count; None if the count has none."""
        if self.size == 1 or count.valid is None:
            return count.valid
        ends = -count.valid.shape[1] % (self.size * self.runs)
        return self.take(F.pad(count.valid, (0, ends), value=False))


WHOLE: Final = SequenceParts()
"""Sequences that one rank has all of."""


class ContextGroups(NamedTuple):
    """The ranks that divide sequences with this one.

    Arguments:
        ring, ulysses: along one of the axes; None where it has one rank.
        whole: along both.
    """

    parts: SequenceParts
    ring: ProcessGroup | None = None
    ulysses: ProcessGroup | None = None
    whole: ProcessGroup | None = None


def _padded(batch: Batch, multiple: int) -> Batch:
    """Rows with padding that no token sees, up to a multiple of a length."""
    length = batch.inputs.shape[1]
    more = -length % multiple
    if not more:
        return batch
    if batch.positions is None:
        places = torch.arange(length, device=batch.inputs.device)
        rows = batch.inputs.shape[0]
        lengths = Lengths.of(np.arange(rows + 1) * length).to(batch.inputs.device)
        batch = replace(batch, positions=places.expand(batch.inputs.shape), lengths=lengths)
    return batch.padded(more)
