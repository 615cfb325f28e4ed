"""Products of rows with the matrices of their groups, one group after the other or in one call."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    rows, matrices, ends = ctx.saved_tensors
    # Matrices beneath an adapter are frozen.
    back = (
        looped_product(gradient, matrices.transpose(1, 2), ends)
        if ctx.needs_input_grad[0]
        else None
    )
    own = looped_gradient(rows, gradient, ends) if ctx.needs_input_grad[1] else None
    return back, own, None


looped_product.register_autograd(_backward, setup_context=_save)


# What PyTorch's kernels take: the stride of each matrix is a multiple of so many bytes.
ALIGNMENT = 16
_CPU_TYPES = (torch.float32, torch.bfloat16, torch.float16)


def why_not_grouped(matrices: Tensor) -> str | None:
    """Say why PyTorch has no grouped matrix product for some matrices.

    Returns:
        the reason; None if there is one that works, forward and backward.
    """
    device, dtype = matrices.device, matrices.dtype
    if not hasattr(F, "grouped_mm"):
        return f"PyTorch {torch.__version__} has none"
    # Its description for compilers, and for tensors without data, knows bf16 only.
    plain = type(matrices) in (Tensor, nn.Parameter) and not torch.compiler.is_compiling()
    if not plain and dtype != torch.bfloat16:
        return f"compiled it computes in bf16, and not in {dtype}"
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability < (8, 0):
            return f"it needs a GPU of compute capability 8.0, this one has {_dotted(capability)}"
        if dtype != torch.bfloat16:
            return f"it computes in bf16 on a GPU, and not in {dtype}"
    elif device.type != "cpu":
        return f"PyTorch has none for {device.type}"
    elif dtype not in _CPU_TYPES:
        return f"it does not compute in {dtype}"
    for size in matrices.shape[1:]:
        if size * dtype.itemsize % ALIGNMENT:
            return (
                f"it needs widths that are multiples of {ALIGNMENT // dtype.itemsize} in {dtype}, "
                f"and one is {size}"
            )
    return None


def grouped_product(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """Multiply the rows of each group with its own matrix.

    Arguments:
        ends: (E,) int32 where the rows of each group end; the last one is R.
    """
    return F.grouped_mm(rows, matrices, offs=ends)


def grouped_gradient(rows: Tensor, gradient: Tensor, ends: Tensor) -> Tensor:
    """Compute the gradient of the matrices of `grouped_product`.

    Arguments:
        ends: (E,) int32 where the rows of each group end; the last one is R.
    """
    return F.grouped_mm(rows.t(), gradient, offs=ends)


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
