"""Batches, the lengths of their documents, and this rank's part of each sequence."""

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
"""Target of a position outside the loss; PyTorch's default."""


@dataclass(frozen=True, slots=True, eq=False)
class Lengths:
    """Lengths of the documents in a batch, known on the host; `cu_seqlens` of varlen kernels.

    Padding, at the end of a row, counts as one more document, so the lengths of a row add up to S.

    Arguments:
        starts: (N + 1,) int32, first position of each document among all B * S, then B * S; on
            the host.
        cumulative: the same on the device of the batch.
    """

    starts: npt.NDArray[np.int32]
    cumulative: torch.Tensor

    @classmethod
    def of(cls, starts: npt.NDArray[Any]) -> Lengths:
        """Build from start positions, on the CPU."""
        starts = starts.astype(np.int32)
        return cls(starts, torch.from_numpy(starts))

    @classmethod
    def of_runs(cls, numbers: npt.NDArray[Any]) -> Lengths:
        """Build from runs of equal numbers in (B, S)."""
        begins = np.ones(numbers.shape, np.bool_)
        np.not_equal(numbers[:, 1:], numbers[:, :-1], out=begins[:, 1:])
        return cls.of(np.append(np.flatnonzero(begins), numbers.size))

    @classmethod
    def of_places(
        cls, positions: torch.Tensor | None, documents: torch.Tensor | None
    ) -> Lengths | None:
        """Build from positions on the host, padded at row ends; None if no row is divided."""
        if documents is None:
            documents = None if positions is None else positions < 0
        return None if documents is None else cls.of_runs(documents.numpy())

    @property
    def longest(self) -> int:
        """Length of the longest document."""
        return int(np.diff(self.starts).max())

    def padded(self, rows: int, missing: int) -> Lengths:
        """The lengths with `missing` more positions of padding at the end of each row."""
        width = int(self.starts[-1]) // rows
        # A row's new padding begins at the old end of the row, which is the start of the next.
        shifted = self.starts + self.starts // width * missing
        ends = np.arange(1, rows + 1) * (width + missing)
        starts = np.union1d(shifted, np.append(ends, ends - missing))
        return Lengths.of(starts).to(self.cumulative.device)

    def to(self, device: torch.device) -> Lengths:
        """Move the cumulative lengths, asynchronously."""
        return replace(self, cumulative=self.cumulative.to(device, non_blocking=True))

    def pin_memory(self) -> Lengths:
        """Copy the cumulative lengths to pinned memory."""
        return replace(self, cumulative=self.cumulative.pin_memory())


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Input tokens and their targets, the next tokens.

    Arguments:
        inputs: (B, S) int64.
        targets: (B, S) int64; `IGNORE_INDEX` where nothing is predicted.
        tokens: number of input tokens, without padding.
        target_tokens: number of targets other than `IGNORE_INDEX`.
        target_bytes: number of bytes of these targets. A separator is predicted but has no bytes:
            bits per byte = sum of -log2 p over `target_tokens` / `target_bytes`.
        weights: (B, S) fp32 weight of each target in the loss; 0 does not count. None: all 1.
        positions: (B, S) integers, negative for padding, which is masked. None: 0 .. S - 1, with
            padding at the end, which causal attention hides.
        documents: (B, S) integers; tokens attend within their own document. None: to the row.
        lengths: document lengths; without `documents`, of the part before padding. None: rows are
            full, or lengths unknown.
        source: (B,) int64 data source of each row, on the host; None if unknown.
        sources: (B, S) int64 data source of each target, on the host; None: that of the row.
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
        """Move the tensors read by the model and its loss."""
        tensors = {name: getattr(self, name) for name in TENSORS}
        # Without pinned memory the host waits anyway.
        ahead = device.type == "cuda"
        converted = {
            name: tensor.to(device, non_blocking=ahead)
            for name, tensor in tensors.items()
            if tensor is not None
        }
        lengths = None if self.lengths is None else self.lengths.to(device)
        return replace(self, **converted, lengths=lengths)

    def padded(self, missing: int) -> Batch:
        """The batch with `missing` more positions of padding at the end of each row."""
        if not missing:
            return self
        ends = {**PADDING, "sources": 0}  # for targets that do not count
        longer = {
            name: pad(tensor, (0, missing), value=end)
            for name, end in ends.items()
            if (tensor := getattr(self, name)) is not None
        }
        rows = self.inputs.shape[0]
        lengths = None if self.lengths is None else self.lengths.padded(rows, missing)
        return replace(self, **longer, lengths=lengths)

    def pin_memory(self) -> Batch:
        """Copy the tensors to pinned memory."""
        tensors = {name: getattr(self, name) for name in TENSORS}
        pinned = {
            name: tensor.pin_memory() for name, tensor in tensors.items() if tensor is not None
        }
        lengths = None if self.lengths is None else self.lengths.pin_memory()
        return replace(self, **pinned, lengths=lengths)


TENSORS = ("inputs", "targets", "weights", "positions", "documents")
# Values of padding.
PADDING = {"inputs": 0, "targets": IGNORE_INDEX, "weights": 0, "positions": -1, "documents": -1}


class Count(NamedTuple):
    """Counts of a batch.

    Arguments:
        tokens: input tokens without padding: the unit of durations, schedules and throughput; the
            model's own loss terms are means over them.
        targets: number of targets with weight; the cross-entropy is their mean.
        weight: total weight of these targets; the divisor of the loss.
        valid: (B, S) mask of these targets; None: all that the data marks.
    """

    tokens: int
    targets: int
    weight: float
    valid: torch.Tensor | None = None


class BySource(NamedTuple):
    """Per-source numbers of a step; empty for a single source.

    Arguments:
        targets: number of targets with weight.
        nats: sums of their cross-entropy; empty if the loss has none per token.
    """

    sequences: tuple[int, ...] = ()
    targets: tuple[int, ...] = ()
    nats: tuple[float, ...] = ()


ONE_SOURCE: Final = BySource()


class StepBatch(NamedTuple):
    """The micro-batches of one step on this rank, with their counts and the total count.

    Arguments:
        epoch: passes over the data, if this rank knows only its own rows; else None.
    """

    batches: Sequence[Batch]
    counts: Sequence[Count]
    rank_total: Count
    by_source: BySource = ONE_SOURCE
    epoch: float | None = None


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
    """Division of each sequence among ranks (context parallelism).

    The ring divides a sequence first: into one run of positions per rank, or (zigzag) two, at equal
    distances from the end and the beginning, as later positions attend to more keys. Ulysses then
    cuts a ring rank's part into runs of equal length.

    Arguments:
        ring, ulysses: degrees; ring * ulysses ranks divide a sequence.
        ring_rank, ulysses_rank: rank numbers of this process.
    """

    ring: int = 1
    ulysses: int = 1
    ring_rank: int = 0
    ulysses_rank: int = 0
    split: Split = "zigzag"

    @property
    def size(self) -> int:
        """Number of ranks that divide a sequence."""
        return self.ring * self.ulysses

    @property
    def rank(self) -> int:
        """Rank of this process among those that divide a sequence."""
        return self.ring_rank * self.ulysses + self.ulysses_rank

    @property
    def runs(self) -> int:
        """Number of runs of positions on a rank of the ring."""
        return 2 if self.ring > 1 and self.split == "zigzag" else 1

    def ring_part(self, length: int, rank: int) -> list[slice]:
        """Positions of one ring rank, whose number is a multiple of ring * runs."""
        run = length // (self.ring * self.runs)
        firsts = [rank] if self.runs == 1 else [rank, 2 * self.ring - 1 - rank]
        return [slice(first * run, (first + 1) * run) for first in firsts]

    def take(self, tensor: Tensor, dim: int = 1) -> Tensor:
        """This rank's part of a tensor along the sequence dimension."""
        length = tensor.shape[dim]
        runs = self.ring_part(length, self.ring_rank)
        part = [tensor.narrow(dim, run.start, run.stop - run.start) for run in runs]
        full = part[0] if len(part) == 1 else torch.cat(part, dim)
        share = length // self.size
        return full.narrow(dim, self.ulysses_rank * share, share)

    def cut(self, batch: Batch) -> Batch:
        """This rank's part of a batch, padded to a length that all ranks can share equally.

        Returns:
            inputs, targets, weights and sources of this rank's positions. Counts stay those of full
            rows, as do positions, documents and lengths, which attention needs.
        """
        if self.size == 1:
            return batch
        more = -batch.inputs.shape[1] % (self.size * self.runs)
        if more and batch.positions is None:
            rows, length = batch.inputs.shape
            device = batch.inputs.device
            positions = torch.arange(length, device=device).expand(rows, length)
            lengths = Lengths.of(np.arange(rows + 1) * length).to(device)
            batch = replace(batch, positions=positions, lengths=lengths)
        batch = batch.padded(more)
        parts = {
            name: self.take(value).contiguous()
            for name in ("inputs", "targets", "weights", "sources")
            if (value := getattr(batch, name)) is not None
        }
        return replace(batch, **parts)

    def take_valid(self, count: Count) -> Tensor | None:
        """This rank's part of `count.valid`."""
        if self.size == 1 or count.valid is None:
            return count.valid
        ends = -count.valid.shape[1] % (self.size * self.runs)
        return self.take(F.pad(count.valid, (0, ends), value=False))


WHOLE: Final = SequenceParts()
"""Sequences that no ranks divide."""


class ContextGroups(NamedTuple):
    """The ranks that divide sequences: along the ring, along Ulysses, and along both.

    A group of one rank is None.
    """

    parts: SequenceParts
    ring: ProcessGroup | None = None
    ulysses: ProcessGroup | None = None
    whole: ProcessGroup | None = None
