"""The product of rows with the matrices of their groups, one group after the other."""

from typing import Any

import torch
from torch import Tensor

# One operation for all groups, so that a compiler and a tracer on tensors without data see fixed
# shapes, where a loop in plain Python would ask the data how many rows each group has; and so that
# the backward pass writes one gradient of all matrices, and not one for each.


@torch.library.custom_op("setpoint::looped_product", mutates_args=())
def looped_product(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """Multiply the rows of each group with its own matrix.

    Arguments:
        ends: (E,) where the rows of each group end; the last one is R.
    """
    product, start = rows.new_empty(rows.shape[0], matrices.shape[2]), 0
    for matrix, end in zip(matrices.unbind(), ends.tolist(), strict=True):
        torch.mm(rows[start:end], matrix, out=product[start:end])
        start = end
    return product


@torch.library.custom_op("setpoint::looped_gradient", mutates_args=())
def looped_gradient(rows: Tensor, gradient: Tensor, ends: Tensor) -> Tensor:
    """Compute the gradient of the matrices of `looped_product`.

    Arguments:
        ends: (E,) where the rows of each group end; the last one is R.
    """
    result, start = rows.new_empty(len(ends), rows.shape[1], gradient.shape[1]), 0
    for matrix, end in zip(result.unbind(), ends.tolist(), strict=True):
        torch.mm(rows[start:end].t(), gradient[start:end], out=matrix)
        start = end
    return result


@looped_product.register_fake
def _product_shape(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    del ends
    return rows.new_empty(rows.shape[0], matrices.shape[2])


@looped_gradient.register_fake
def _gradient_shape(rows: Tensor, gradient: Tensor, ends: Tensor) -> Tensor:
    return rows.new_empty(ends.shape[0], rows.shape[1], gradient.shape[1])


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    del output
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    rows, matrices, ends = ctx.saved_tensors
    back = looped_product(gradient, matrices.transpose(1, 2), ends)
    return back, looped_gradient(rows, gradient, ends), None


looped_product.register_autograd(_backward, setup_context=_save)
