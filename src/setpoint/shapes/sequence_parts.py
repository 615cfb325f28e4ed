"""Sequences that several ranks divide among them: who has which places, and its part of a batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from setpoint.shapes.batch import Batch, Count, Lengths

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Split = Literal["zigzag", "contiguous"]


@dataclass(frozen=True, slots=True)
class SequenceParts:
    """Which places of each sequence a rank has.

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
        """How many ranks a sequence is divided among."""
        return self.ring * self.ulysses

    @property
    def rank(self) -> int:
        """The number of this process among them."""
        return self.ring_rank * self.ulysses + self.ulysses_rank

    @property
    def runs(self) -> int:
        """How many runs of places a rank of the ring has."""
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
        """What this rank has of a tensor with all places in one dimension."""
        length = tensor.shape[dim]
        runs = self.ring_part(length, self.ring_rank)
        part = [tensor.narrow(dim, run.start, run.stop - run.start) for run in runs]
        whole = part[0] if len(part) == 1 else torch.cat(part, dim)
        own = length // self.size
        return whole.narrow(dim, self.ulysses_rank * own, own)

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
        """The same of which targets count."""
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
