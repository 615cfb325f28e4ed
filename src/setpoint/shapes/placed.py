"""Tensors of which each rank may hold a part: from the whole to the part, and back."""

from __future__ import annotations

from torch import Tensor, nn


def as_placed(full: Tensor, like: Tensor) -> Tensor:
    """Take of a full tensor, the same on all ranks, what a tensor of this placement holds."""
    if type(like) in (nn.Parameter, Tensor):
        return full
    # Imported here: only sharded parameters need it, and it takes a good part of a second.
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor):
        return full
    # src_data_rank=None: every rank has the same tensor, so nothing need be sent.
    full = full.to(like.device)
    return distribute_tensor(full, like.device_mesh, like.placements, src_data_rank=None)


def whole_of(tensor: Tensor) -> Tensor:
    """All of a tensor; where the ranks hold parts of it, all of them take part."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def part_here(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank holds, with gradients; all of it where it is one."""
    local = getattr(tensor, "to_local", None)
    return tensor if local is None else local()
