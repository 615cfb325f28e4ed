"""Waiting for a tensor that is still on its way from other ranks."""

from torch import Tensor


def wait_for_collective(x: Tensor) -> Tensor:
    """Wait for a collective, if this tensor is the result of one that has not been waited for.

    With tensor parallelism the embedding gives such a tensor. It waits when it is first read; but a
    compiled layer takes it as an input as it is, and its backward pass then fails on the gradient,
    which is an ordinary tensor.
    """
    if type(x) is Tensor:
        return x
    # Imported here: one process has no use for it, and it takes a good part of a second.
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    # A view would still be on its way.
    return x.clone() if isinstance(x, AsyncCollectiveTensor) else x
