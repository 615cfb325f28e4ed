"""Conversion between full tensors and their local shards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Placeable(ABC):
    """Tensor that is read lazily, box by box."""

    __slots__ = ()

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """Shape of the full tensor."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Dtype of the values read."""

    @abstractmethod
    def box(self, offset: Sequence[int], shape: Sequence[int]) -> Tensor:
        """Read a box that starts at `offset` into new memory on the CPU."""

    def whole(self) -> Tensor:
        """Read the full tensor, on the CPU."""
        return self.box([0] * len(self.shape), self.shape)

    def fill(self, into: Tensor, offset: Sequence[int]) -> None:
        """Read a box into a tensor of the same shape, on any device and in any dtype."""
        into.copy_(self.box(offset, into.shape))


Named = Mapping[str, Tensor | Placeable]
"""Tensors by name, in memory or read lazily."""


def in_memory(full: Tensor | Placeable) -> Tensor:
    """Read a tensor that is not in memory."""
    return full.whole() if isinstance(full, Placeable) else full


def as_placed(full: Tensor | Placeable, like: Tensor) -> Tensor:
    """Shard a full tensor, equal on all ranks, like another tensor."""
    if _is_whole(like):
        return in_memory(full)
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    if isinstance(full, Tensor):
        mesh, placements = like.device_mesh, like.placements
        # src_data_rank=None: every rank has the same tensor, so nothing needs to be sent.
        return distribute_tensor(full.to(like.device), mesh, placements, src_data_rank=None)
    shape, offset = box_of(like)
    return spread_like(full.box(offset, shape).to(like.device), like)


def spread_like(part: Tensor, like: Tensor) -> Tensor:
    """Combine the parts of all ranks into a tensor that is sharded like another one."""
    if _is_whole(like):
        return part
    from torch.distributed.tensor import DTensor

    assert isinstance(like, DTensor)
    return DTensor.from_local(
        part,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def put(into: Tensor, full: Tensor | Placeable) -> None:
    """Copy this rank's part of a full tensor, equal on all ranks, into a tensor."""
    into = into.detach()
    if isinstance(full, Tensor):
        into.copy_(as_placed(full, into))
    elif _is_whole(into):
        full.fill(into, [0] * into.dim())
    else:
        full.fill(local_part(into), box_of(into)[1])


def _is_whole(tensor: Tensor) -> bool:
    if type(tensor) in (nn.Parameter, Tensor):
        return True
    # Imported here: only sharded parameters need it, and it takes a large part of a second.
    from torch.distributed.tensor import DTensor

    return not isinstance(tensor, DTensor)


def box_of(tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and offset of the local shard of a DTensor."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    return compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )


def whole_of(tensor: Tensor) -> Tensor:
    """The full tensor; a collective if it is sharded."""
    if not hasattr(tensor, "full_tensor"):
        return tensor
    from torch.distributed.tensor import DTensor, Replicate, Shard

    assert isinstance(tensor, DTensor)
    places = list(tensor.placements)
    # One mesh dimension at a time, the last division first: FSDP2's divisions after others (a
    # _StridedShard, not a Shard in torch 2.13), then from the innermost out.
    order = sorted(range(len(places)), key=lambda dim: (type(places[dim]) is Shard, -dim))
    for dim in order:
        if not isinstance(places[dim], Replicate):
            places[dim] = Replicate()
            tensor = tensor.redistribute(placements=places)
    return tensor.to_local()


def local_part(tensor: Tensor) -> Tensor:
    """Local shard of a DTensor, with gradients; other tensors are returned unchanged."""
    local = getattr(tensor, "to_local", None)
    return tensor if local is None else local()


def local_ranges(parameter: Tensor) -> tuple[Tensor, list[tuple[int, int]]] | None:
    """Local memory of a parameter, and its range within each dimension of the full tensor.

    None if the shard is not a range.
    """
    box = [(0, size) for size in parameter.shape] or [(0, 1)]
    if type(parameter) is nn.Parameter:
        return parameter, box
    # Imported here: only sharded parameters need it, and it takes a large part of a second.
    from torch.distributed.tensor import DTensor, Replicate, Shard

    if not isinstance(parameter, DTensor):
        return parameter, box
    mesh = parameter.device_mesh
    divided: list[tuple[int, Any]] = [
        (dim, placement)
        for dim, placement in enumerate(parameter.placements)
        if not isinstance(placement, Replicate)
    ]
    # A strided shard further divides the part of ranks of a later mesh dimension: FSDP2 shards what
    # tensor parallelism has divided.
    divided.sort(key=lambda pair: type(pair[1]) is not Shard)
    for dim, placement in divided:
        if type(placement) is not Shard and not _is_strided(placement):
            return None
        first, last = box[placement.dim]
        size = -(-(last - first) // mesh.size(dim))
        first = min(last, first + size * mesh.get_local_rank(dim))
        box[placement.dim] = first, min(last, first + size)
    return parameter.to_local(), box


def _is_strided(placement: Any) -> bool:
    """True for DTensor's _StridedShard, which has no public name."""
    return hasattr(placement, "split_factor") and hasattr(placement, "dim")


class ShardDtypes(NamedTuple):
    """Dtypes of a weight sharded by FSDP2.

    Arguments:
        gathered: dtype of the all-gather and the computation.
        grad: dtype of the full gradient, in which micro-batches accumulate.
        shard_grad: dtype of the shard's gradient.
    """

    gathered: torch.dtype
    grad: torch.dtype
    shard_grad: torch.dtype


class ShardedWeight(NamedTuple):
    """A weight sharded by FSDP2: its shard, and the modules that contain it, with its names."""

    modules: list[tuple[nn.Module, str]]
    shard: nn.Parameter
