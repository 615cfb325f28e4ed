"""Ranks that compute one forward pass together: what they exchange, and what becomes of gradients.

Collectives are named by their group, as torch's functional ones take it, which compilers can trace.
Tensors are made contiguous before they are sent: gloo sends wrong numbers of others without a word.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

Sum = Literal["sum", "max", "min"]

# What `torch.distributed._functional_collectives` calls: there are no public ones that compilers
# can trace.
_ops: Any = torch.ops._c10d_functional


class Peers(NamedTuple):
    """Ranks that have parts of the same tensors.

    Arguments:
        group: the name of their process group.
        rank: of this process among them.
    """

    group: str
    rank: int
    size: int

    def reduce(self, x: Tensor, how: Sum = "sum") -> Tensor:
        """Combine a tensor of all ranks, element by element; without gradient."""
        return _waited(_ops.all_reduce(x.contiguous(), how, self.group))

    def gather(self, x: Tensor, dim: int) -> Tensor:
        """Put the parts of all ranks side by side, in their order; without gradient."""
        dim %= x.dim()
        parts = _waited(_ops.all_gather_into_tensor(x.contiguous(), self.size, self.group))
        return parts if dim == 0 else torch.cat(parts.chunk(self.size), dim=dim)

    def scatter(self, x: Tensor, dim: int) -> Tensor:
        """Sum a tensor of all ranks, and keep this one's part of the sum; without gradient."""
        if dim % x.dim():
            x = torch.cat(x.chunk(self.size, dim=dim))
        return _waited(_ops.reduce_scatter_tensor(x.contiguous(), "sum", self.size, self.group))

    def part(self, x: Tensor, dim: int) -> Tensor:
        """Keep this rank's part of a tensor that all of them have."""
        length = x.shape[dim] // self.size
        return x.narrow(dim, self.rank * length, length)


def _waited(x: Tensor) -> Tensor:
    return _ops.wait_tensor(x)


def sum_gradients(x: Tensor, peers: Peers) -> Tensor:
    """Hand on a tensor that all ranks have, and of which each computes with a part of the weights.

    Its gradient is the sum of what the ranks say.
    """
    return _SumGradients.apply(x, peers)


def sum_parts(x: Tensor, peers: Peers) -> Tensor:
    """Add up the terms of all ranks; all of them compute the same with the sum."""
    return _SumParts.apply(x, peers)


def gather_parts(x: Tensor, dim: int, peers: Peers, *, sums: bool) -> Tensor:
    """Put the parts of all ranks side by side.

    Arguments:
        sums: whether the gradient of the whole is the sum of what the ranks say; else all of them
            compute the same with it, and say the same.
    """
    return _GatherParts.apply(x, dim, peers, sums)


def scatter_sum(x: Tensor, dim: int, peers: Peers) -> Tensor:
    """Add up the terms of all ranks, and keep this one's part of the sum."""
    return _ScatterSum.apply(x, dim, peers)


def keep_part(x: Tensor, dim: int, peers: Peers) -> Tensor:
    """Keep this rank's part of what all of them have computed alike."""
    return _KeepPart.apply(x, dim, peers)


class _SumGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, peers: Peers) -> Tensor:
        ctx.peers = peers
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ctx.peers.reduce(grad), None


class _SumParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, peers: Peers) -> Tensor:
        return peers.reduce(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad, None


class _GatherParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, peers: Peers, sums: bool) -> Tensor:
        ctx.dim, ctx.peers, ctx.sums = dim, peers, sums
        return peers.gather(x, dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        peers = ctx.peers
        part = peers.scatter(grad, ctx.dim) if ctx.sums else peers.part(grad, ctx.dim)
        return part, None, None, None


class _ScatterSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, peers: Peers) -> Tensor:
        ctx.dim, ctx.peers = dim, peers
        return peers.scatter(x, dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ctx.peers.gather(grad, ctx.dim), None, None


class _KeepPart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, peers: Peers) -> Tensor:
        ctx.dim, ctx.peers = dim, peers
        return peers.part(x, dim).contiguous()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ctx.peers.gather(grad, ctx.dim), None, None
