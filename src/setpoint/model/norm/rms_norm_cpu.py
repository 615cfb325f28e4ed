"""RMSNorm for the CPU with an analytic backward: a third of the time of the composed one."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _RMSNorm(torch.autograd.Function):
    """y = x r w with r = 1 / sqrt(mean(x^2) + eps).

    With n = x r and G = g w the gradients are dw = sum(g n) over all vectors and
    dx = r (G - n mean(G n)). Layer normalization with mean zero and deviation 1/r has the same
    dw and dx = r (G - mean(G) - n mean(G n)). PyTorch has a fused CPU kernel for that backward,
    so we call it and give back the one term it takes away, r mean(G).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        r = _scale(x, eps)
        ctx.save_for_backward(x, weight, r)
        return (x * r).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator is untyped
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor, Tensor, None]:
        x, weight, r = ctx.saved_tensors
        dim = x.shape[-1]
        grad = grad.contiguous()
        dx, dw, _ = torch.ops.aten.native_layer_norm_backward(
            grad, x, [dim], torch.zeros_like(r), r, weight, None, [True, True, False]
        )
        mean = torch.mv(grad.view(-1, dim), weight / dim).view_as(r)
        return dx.add_(mean.mul_(r)), dw, None


def rms_norm_cpu(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Apply RMSNorm (Zhang and Sennrich, 2019) to the last axis of a CPU tensor."""
    if torch.is_grad_enabled():
        return _RMSNorm.apply(x, weight, eps)
    # What the function around it costs shows where a token is generated at a time.
    return (x * _scale(x, eps)).mul_(weight)


def _scale(x: Tensor, eps: float) -> Tensor:
    """(..., 1) 1 / sqrt(mean(x^2) + eps)."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
