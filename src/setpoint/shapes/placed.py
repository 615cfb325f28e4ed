"""Tensors of which each rank may hold a part: from the whole to the part, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn


@runtime_checkable
class Placeable(Protocol):
    """A tensor that is read when it is known which part of it is wanted."""

    @property
    def shape(self) -> torch.Size:
        """The shape of the whole."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which it is read."""
        ...

    def box(self, offset: Sequence[int], shape: Sequence[int]) -> Tensor:
        """Read a box of it, on the CPU; `offset` is its first element."""
        ...

    def whole(self) -> Tensor:
        """Read all of it, on the CPU."""
        ...


Named = Mapping[str, Tensor | Placeable]
"""Name to tensor, or to what is read of it when it is placed."""


def as_placed(full: Tensor | Placeable, like: Tensor) -> Tensor:
    """Take of a full tensor, the same on all ranks, what a tensor of this placement holds."""
    if type(like) in (nn.Parameter, Tensor):
        return full if isinstance(full, Tensor) else full.whole()
    # Imported here: only sharded parameters need it, and it takes a good part of a second.
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor):
        return full if isinstance(full, Tensor) else full.whole()
    if isinstance(full, Tensor):
        # src_data_rank=None: every rank has the same tensor, so nothing need be sent.
        full = full.to(like.device)
        return distribute_tensor(full, like.device_mesh, like.placements, src_data_rank=None)
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements = like.device_mesh, like.placements
    shape, offset = compute_local_shape_and_global_offset(like.shape, mesh, placements)
    local = full.box(offset, shape).to(like.device)
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def whole_of(tensor: Tensor) -> Tensor:
    """All of a tensor; where the ranks hold parts of it, all of them take part."""
    if not hasattr(tensor, "full_tensor"):
        return tensor
    from torch.distributed.tensor import DTensor, Replicate, Shard

    assert isinstance(tensor, DTensor)
    places = list(tensor.placements)
    # One dimension of the mesh after the other, the last to divide first: what FSDP2 has divided
    # after others (a _StridedShard, which is no Shard in torch 2.13), then from the innermost out.
    order = sorted(range(len(places)), key=lambda dim: (type(places[dim]) is Shard, -dim))
    for dim in order:
        if not isinstance(places[dim], Replicate):
            places[dim] = Replicate()
            tensor = tensor.redistribute(placements=places)
    return tensor.to_local()


def part_here(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank holds, with gradients; all of it where it is one."""
    local = getattr(tensor, "to_local", None)
    return tensor if local is None else local()


def held_here(parameter: Tensor) -> tuple[Tensor, list[tuple[int, int]]] | None:
    """The memory of a parameter on this rank, and the ranges of the whole that it holds.

    Returns:
        None where it holds no ranges.
    """
    box = [(0, size) for size in parameter.shape] or [(0, 1)]
    if type(parameter) is nn.Parameter:
        return parameter, box
    # Imported here: only sharded parameters need it, and it takes a good part of a second.
    from torch.distributed.tensor import DTensor, Replicate, Shard

    if not isinstance(parameter, DTensor):
        return parameter, box
    mesh = parameter.device_mesh
    divided: list[tuple[int, Any]] = [
        (dim, placement)
        for dim, placement in enumerate(parameter.placements)
        if not isinstance(placement, Replicate)
    ]
    # A part that ranks of a later dimension of the mesh have is divided further by a strided one:
    # FSDP2 shards what tensor parallelism has divided.
    divided.sort(key=lambda each: type(each[1]) is not Shard)
    for dim, placement in divided:
        if type(placement) is not Shard and not _is_strided(placement):
            return None
        first, last = box[placement.dim]
        size = -(-(last - first) // mesh.size(dim))
        first = min(last, first + size * mesh.get_local_rank(dim))
        box[placement.dim] = first, min(last, first + size)
    return parameter.to_local(), box


def _is_strided(placement: Any) -> bool:
    """Whether it is DTensor's placement for a part of a part, whose class has no public name."""
    return hasattr(placement, "split_factor") and hasattr(placement, "dim")
