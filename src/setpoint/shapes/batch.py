"""What goes from the data to the model and its loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import torch
from torch.nn.functional import pad

IGNORE_INDEX: Final = -100
"""The target of a position that takes no part in the loss; PyTorch's own default."""


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
        return replace(self, **moved)

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
        return replace(self, **longer)

    def pin_memory(self) -> Batch:
        """Copy the tensors to where a GPU reads them while it computes."""
        tensors = {name: getattr(self, name) for name in TENSORS}
        pinned = {name: each.pin_memory() for name, each in tensors.items() if each is not None}
        return replace(self, **pinned)


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
