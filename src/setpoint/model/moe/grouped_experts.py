"""Packed experts from tokens to tokens as one step, with little kept for the gradients."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from setpoint.model.moe.rows import spread, sum_choices
from setpoint.shapes.peers import compute_sent

Product = Callable[[Tensor, Tensor, Tensor], Tensor]


class ExpertKernels(NamedTuple):
    """The operations that grouped experts are computed with.

    Arguments:
        product: (R, in) rows, (E, in, out) matrices and where the rows of each end, to (R, out).
        gradient: of the matrices in such a product: rows, the gradient of the product, the ends.
        activation: works on each element; of the gate where there is one.
    """

    product: Product
    gradient: Product
    activation: Callable[[Tensor], Tensor]
    top_k: int


class _GroupedExperts(torch.autograd.Function):
    """Keeps the tokens and the products with gate and up; the rest is gathered or recomputed.

    Composed of single operations, autograd would keep two copies of each token for each of its
    choices, and all that lies between gate and down.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weights: Tensor,
        gate: Tensor | None,
        up: Tensor,
        down: Tensor,
        slots: Tensor,
        ends: Tensor,
        factors: Tensor | None,
        kernels: ExpertKernels,
    ) -> Tensor:
        rows = x.index_select(0, slots.div(kernels.top_k, rounding_mode="floor"))
        opened = None if gate is None else kernels.product(rows, gate, ends)
        values = kernels.product(rows, up, ends)
        del rows
        own = weights.flatten().index_select(0, slots).unsqueeze(1)
        ctx.save_for_backward(x, gate, up, down, opened, values, own, slots, ends, factors)
        ctx.kernels, ctx.shape = kernels, (*weights.shape, x.shape[1])

        def result() -> Tensor:
            inner = kernels.activation(values if opened is None else opened)
            inner = (inner if opened is None else inner.mul_(values)) * own
            out = kernels.product(inner, down, ends)
            return sum_choices(spread(out, slots, weights.numel()).view(ctx.shape))

        return compute_sent(result, x)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator is untyped
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, ...]:
        x, gate, up, down, opened, values, own, slots, ends, factors = ctx.saved_tensors
        product, gradient, activation, top_k = kernels = ctx.kernels
        del kernels
        tokens = slots.div(top_k, rounding_mode="floor")
        with torch.enable_grad():
            source = (values if opened is None else opened).detach().requires_grad_()
            result = activation(source)
        # A copy, as it is scaled in place below: the derivative of ReLU is read off its result.
        inner = result.detach().clone() if opened is None else result.detach() * values

        # From the output back to the inner rows: the matrix down, and the weights of the choices.
        grad_out = grad.index_select(0, tokens)
        grad_inner = product(grad_out, down.transpose(1, 2), ends)
        grad_own = (grad_inner * inner).sum(dim=1)
        scale = own if factors is None else own * factors.unsqueeze(1).to(own.dtype)
        grad_down = gradient(inner.mul_(scale), grad_out, ends)
        del inner, grad_out

        # Through the activation, and the two products with the tokens.
        grad_inner.mul_(scale)
        grad_result = grad_inner if opened is None else grad_inner * values
        (grad_source,) = torch.autograd.grad(result, source, grad_result)
        grad_values = grad_source if opened is None else grad_inner.mul_(result.detach())
        del result, grad_result
        grad_rows = product(grad_values, up.transpose(1, 2), ends)
        if gate is not None:
            grad_rows += product(grad_source, gate.transpose(1, 2), ends)
        grad_x = sum_choices(spread(grad_rows, slots, len(x) * top_k).view(ctx.shape))
        del grad_rows
        rows = x.index_select(0, tokens)
        grad_gate = None if gate is None else gradient(rows, grad_source, ends)
        del grad_source
        grad_up = gradient(rows, grad_values, ends)
        grad_weights = spread(grad_own.unsqueeze(1), slots, len(x) * top_k).view(ctx.shape[:2])
        return grad_x, grad_weights, grad_gate, grad_up, grad_down, None, None, None, None


def grouped_experts(
    x: Tensor,
    weights: Tensor,
    gate: Tensor | None,
    up: Tensor,
    down: Tensor,
    slots: Tensor,
    ends: Tensor,
    factors: Tensor | None,
    kernels: ExpertKernels,
) -> Tensor:
    """Compute the sum over the choices of each token of weight * expert(token).

    Arguments:
        gate, up: (E, dim, width); no gate: the activation is applied to the product with up.
        slots: (R,) where the rows of the experts stand in the flattened choices; a choice that is
            not there adds nothing.
        factors: (R,) what gradients through each row are multiplied by, but for those of the
            weights; None: nothing.
    """
    return _GroupedExperts.apply(x, weights, gate, up, down, slots, ends, factors, kernels)
