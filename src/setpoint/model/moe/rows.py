"""Taking tokens to the experts that work on them, and back."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _Gather(torch.autograd.Function):
    """rows[r] = x[slots[r] // k]; the gradient of a token is the sum over its k choices.

    The backward pass of `index_select` adds row by row in the dtype of x; this one writes each row
    once and sums over k, in fp32 inside.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, slots: Tensor, top_k: int) -> Tensor:
        ctx.save_for_backward(slots)
        ctx.shape = (x.shape[0], top_k, x.shape[1])
        return x.index_select(0, slots.div(top_k, rounding_mode="floor"))

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator is untyped
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor, None, None]:
        (slots,) = ctx.saved_tensors
        tokens, top_k, _ = ctx.shape
        return sum_choices(spread(grad, slots, tokens * top_k).view(ctx.shape)), None, None


def sum_choices(choices: Tensor) -> Tensor:
    """Add up (T, k, dim) over the choices of each token, in fp32 inside.

    The dtype is named, as autocast on CUDA returns sums in fp32 otherwise: gradients would not fit
    the products behind them, and exchanges would send twice the bytes.
    """
    return choices.sum(dim=1, dtype=choices.dtype)


def gather(x: Tensor, slots: Tensor, top_k: int) -> Tensor:
    """Copy each token to the rows of the experts that it chose."""
    return _Gather.apply(x, slots, top_k)


def spread(rows: Tensor, slots: Tensor, count: int) -> Tensor:
    """Put rows where their choices stand."""
    full = rows.new_empty if len(slots) == count else rows.new_zeros
    return full(count, rows.shape[1]).index_copy_(0, slots, rows)


class _ScaleGradient(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a factor for each row."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, factors: Tensor) -> Tensor:
        ctx.save_for_backward(factors)
        return rows.view_as(rows)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator is untyped
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor, None]:
        (factors,) = ctx.saved_tensors
        return grad * factors.unsqueeze(1).to(grad.dtype), None


def load_factors(rows: int, taken: Tensor, ends: Tensor, dtype: torch.dtype) -> Tensor:
    """Compute mean load / load for the expert of each row.

    With gradients multiplied by it, an expert with few tokens learns as fast as one with many.

    Arguments:
        taken: (E,), or (E, parts) of a batch whose parts have loads of their own.
        ends: where the rows of each of these end.
    """
    load = taken.to(torch.promote_types(dtype, torch.float32))
    mean = load.mean() if load.dim() == 1 else load.mean(dim=0)
    factors = (mean / load.clamp(min=1)).flatten()
    places = torch.arange(rows, device=ends.device)
    return factors[torch.searchsorted(ends, places, right=True)].to(dtype)


def scale_gradient(rows: Tensor, factors: Tensor) -> Tensor:
    """Multiply the gradient of each row; values stay."""
    return _ScaleGradient.apply(rows, factors)
