"""The part of a tensor that lies on this rank, for what is computed element by element."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_spread(tensor: Tensor) -> TypeGuard[DTensor]:
    """Say whether a tensor is spread over ranks.

    Returns:
        whether it is a DTensor, without importing that class, which takes a good part of a second.
    """
    return hasattr(tensor, "to_local")


def shard_of(tensor: Tensor, like: Tensor) -> Tensor:
    """Take this rank's part of a tensor.

    Returns:
        the tensor itself where it is not spread, else its part here, in the same memory unless
        it was spread in another way.
    """
    if not is_spread(tensor):
        return tensor
    assert is_spread(like)
    if tensor.placements != like.placements:
        tensor = tensor.redistribute(placements=like.placements)
    return tensor.to_local()
