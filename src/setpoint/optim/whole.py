"""Whole parameters out of the parts that ranks hold, each on one rank, and the way back.

What needs a whole matrix is computed once instead of on every rank (Liu et al., 2025,
https://arxiv.org/abs/2502.16982, section 2.3): the ranks that divide some parameters of one shape
exchange their parts, so that each of them gets a share of the parameters whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from setpoint.optim.base import is_dtensor
from setpoint.shapes.placed import whole_of

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


class Split(NamedTuple):
    """A dimension of a mesh along which ranks hold less than whole matrices of a parameter.

    Arguments:
        dim: the dimension of the parameter that is divided.
        is_alone: whether no other dimension of the mesh divides its matrices.
    """

    mesh_dim: int
    dim: int
    is_alone: bool


def split_of(parameter: Tensor) -> Split | None:
    """Find how a parameter is divided; None where each rank holds whole matrices.

    A parameter of three dimensions is a batch of matrices, whole where it is split by its first.
    """
    if not is_dtensor(parameter):
        return None
    mesh = parameter.device_mesh
    dims = [
        (number, dim)
        for number, placement in enumerate(parameter.placements)
        if (dim := getattr(placement, "dim", None)) is not None and mesh.size(number) > 1
    ]
    found = [each for each in dims if each[1] or parameter.ndim != 3]
    # FSDP2 over tensor parallelism places rows in strides, and a batch may be split both ways.
    return Split(*found[0], is_alone=len(dims) == 1) if found else None


class Exchange(Protocol):
    """Brings parameters of one shape to where they are computed."""

    def whole(self, parts: Sequence[Tensor]) -> Tensor:
        """Take this rank's share of the parameters.

        Arguments:
            parts: this rank's parts, one for each parameter.

        Returns:
            (share, *shape): whole ones, perhaps none.
        """
        ...

    def parts(self, results: Tensor) -> Sequence[Tensor]:
        """Give back what was computed of `whole`: this rank's parts of all parameters."""
        ...


class Nothing:
    """Each rank holds whole matrices."""

    def whole(self, parts: Sequence[Tensor]) -> Tensor:
        """See `Exchange.whole`."""
        return torch.stack(tuple(parts)) if len(parts) > 1 else parts[0][None]

    def parts(self, results: Tensor) -> Sequence[Tensor]:
        """See `Exchange.parts`."""
        return results.unbind()


class Parts:
    """Parameters that one dimension of a mesh divides: all-to-all there and back.

    Arguments:
        like: one of the parameters.
        owners: of each parameter the rank that gets it whole, by its place in the dimension.
    """

    def __init__(self, like: DTensor, split: Split, owners: Sequence[int]) -> None:
        mesh = like.device_mesh
        self.group: Any = mesh.get_group(split.mesh_dim)
        self.rank, size = mesh.get_local_rank(split.mesh_dim), mesh.size(split.mesh_dim)
        self.dim, self.shape = split.dim, like.shape
        rows = self.shape[self.dim]
        each = -(-rows // size)
        # As torch.chunk has it: the last ranks may hold less, or nothing.
        self.held = [max(0, min(rows, each * (n + 1)) - each * n) for n in range(size)]
        self.order = [[i for i, owner in enumerate(owners) if owner == n] for n in range(size)]

    def whole(self, parts: Sequence[Tensor]) -> Tensor:
        """See `Exchange.whole`."""
        own = len(self.order[self.rank])
        given = [parts[i].reshape(-1) for theirs in self.order for i in theirs]
        sent = [len(theirs) * self._count(self.rank) for theirs in self.order]
        taken = [own * self._count(n) for n in range(len(self.order))]
        found = self._swap(torch.cat(given), sent, taken).split(taken)
        pieces = [each.view(own, *self._part(n)) for n, each in enumerate(found)]
        return torch.cat(pieces, dim=self.dim + 1)

    def parts(self, results: Tensor) -> Sequence[Tensor]:
        """See `Exchange.parts`."""
        own = len(self.order[self.rank])
        pieces = results.split(self.held, dim=self.dim + 1)
        sent = [own * self._count(n) for n in range(len(self.order))]
        taken = [len(theirs) * self._count(self.rank) for theirs in self.order]
        given = torch.cat([each.reshape(-1) for each in pieces])
        places = [i for theirs in self.order for i in theirs]
        found = self._swap(given, sent, taken).view(len(places), *self._part(self.rank))
        return [part for _, part in sorted(zip(places, found, strict=True), key=lambda p: p[0])]

    def _swap(self, given: Tensor, sent: list[int], taken: list[int]) -> Tensor:
        found = given.new_empty(sum(taken))
        torch.distributed.all_to_all_single(found, given, taken, sent, group=self.group)
        return found

    def _part(self, rank: int) -> tuple[int, ...]:
        return (*self.shape[: self.dim], self.held[rank], *self.shape[self.dim + 1 :])

    def _count(self, rank: int) -> int:
        return torch.Size(self._part(rank)).numel()


class Everywhere:
    """Parameters that several dimensions of a mesh divide: gathered on all ranks.

    What each rank has computed is summed over one of the dimensions, zero where it has not.
    """

    def __init__(self, like: DTensor, split: Split, owners: Sequence[int]) -> None:
        self.like = like
        self.group: Any = like.device_mesh.get_group(split.mesh_dim)
        rank = like.device_mesh.get_local_rank(split.mesh_dim)
        self.own = [i for i, owner in enumerate(owners) if owner == rank]
        self.count = len(owners)

    def whole(self, parts: Sequence[Tensor]) -> Tensor:
        """See `Exchange.whole`."""
        from torch.distributed.tensor import DTensor

        like, found = self.like, list[Tensor]()
        for number, part in enumerate(parts):
            spread = DTensor.from_local(
                part,
                like.device_mesh,
                like.placements,
                run_check=False,
                shape=like.shape,
                stride=like.stride(),
            )
            full = whole_of(spread)
            if number in self.own:
                found.append(full)
        return torch.stack(found) if found else parts[0].new_empty(0, *like.shape)

    def parts(self, results: Tensor) -> Sequence[Tensor]:
        """See `Exchange.parts`."""
        from torch.distributed.tensor import distribute_tensor

        like = self.like
        every = results.new_zeros(self.count, *like.shape)
        every[self.own] = results
        torch.distributed.all_reduce(every, group=self.group)
        mesh, placements = like.device_mesh, like.placements
        return [
            distribute_tensor(each, mesh, placements, src_data_rank=None).to_local()
            for each in every
        ]


def exchange_of(like: Tensor, owners: Sequence[int]) -> Exchange:
    """Choose how parameters of one shape and placement are brought together.

    Arguments:
        like: one of them.
        owners: see `Parts`; not read where matrices are whole on each rank.
    """
    split = split_of(like)
    if split is None:
        return Nothing()
    assert is_dtensor(like)
    return (Parts if split.is_alone else Everywhere)(like, split, owners)
