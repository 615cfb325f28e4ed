"""Grouped products of packed experts in float8 or MXFP8, by torchao's kernels.

Each of the three products of a layer, with the gradients of rows and of matrices, is one of two: of
rows with a matrix for each group, or of columns summed over the rows of a group. Groups are padded
to whole blocks for a product alone, so that nothing but rows and matrices is kept for gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from setpoint.precision.config import MX_BLOCK, multiple_of
from setpoint.shapes.protocols import GroupedProducts
from setpoint.shapes.torchao import import_torchao

if TYPE_CHECKING:
    from setpoint.precision.config import Float8

Product = Callable[[Tensor, Tensor, Tensor], Tensor]


class _Kernels(NamedTuple):
    """Products in bf16 of groups of whole blocks.

    Arguments:
        product: rows, matrices (E, in, out) and ends, as `GroupedProducts.product`.
        gradient: as `GroupedProducts.gradient`; None: in bf16, of blocks of any size.
        multiple: of rows in a block.
    """

    product: Product
    gradient: Product | None
    multiple: int


def grouped_products(config: Float8) -> GroupedProducts:
    """Make the products of a recipe that `Float8.experts` allows."""
    by_blocks = config.recipe.startswith("mxfp8")
    product, gradient = _mxfp8(config) if by_blocks else _rowwise(config)
    exact = config.recipe.endswith("with_gw_hp")
    kernels = _Kernels(product, None if exact else gradient, multiple_of(config.recipe))

    def multiply(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
        return _Grouped.apply(rows, matrices, ends, kernels)

    return GroupedProducts(multiply, partial(_gradient, kernels=kernels))


class _Grouped(torch.autograd.Function):
    """A product of groups; what it keeps is not padded, and not in another layout."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, matrices: Tensor, ends: Tensor, kernels: _Kernels
    ) -> Tensor:
        ctx.save_for_backward(rows, matrices, ends)
        ctx.kernels = kernels
        return _product(rows, matrices, ends, kernels)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator is untyped
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None]:
        rows, matrices, ends = ctx.saved_tensors
        of_rows = of_matrices = None
        if ctx.needs_input_grad[0]:
            of_rows = _product(grad, matrices.transpose(1, 2), ends, ctx.kernels)
        if ctx.needs_input_grad[1]:
            of_matrices = _gradient(rows, grad, ends, ctx.kernels)
        return of_rows, of_matrices, None, None


def _product(rows: Tensor, matrices: Tensor, ends: Tensor, kernels: _Kernels) -> Tensor:
    if not len(rows):
        return rows.new_zeros(0, matrices.shape[2], dtype=torch.bfloat16)
    places, ends, count = _blocks(len(rows), ends, kernels.multiple)
    # Kernels read the matrices by columns.
    matrices = matrices.to(torch.bfloat16).transpose(1, 2).contiguous().transpose(1, 2)
    return kernels.product(_padded(rows, places, count), matrices, ends).index_select(0, places)


def _gradient(rows: Tensor, grad: Tensor, ends: Tensor, kernels: _Kernels) -> Tensor:
    if not len(rows):
        return rows.new_zeros(len(ends), rows.shape[1], grad.shape[1], dtype=torch.bfloat16)
    if kernels.gradient is None:
        return F.grouped_mm(rows.to(torch.bfloat16).t(), grad.to(torch.bfloat16), offs=ends)
    places, ends, count = _blocks(len(rows), ends, kernels.multiple)
    return kernels.gradient(_padded(rows, places, count), _padded(grad, places, count), ends)


def _blocks(rows: int, ends: Tensor, multiple: int) -> tuple[Tensor, Tensor, int]:
    """Where rows stand if each group fills whole blocks, and one at least.

    Returns:
        (R,) places of rows; (E,) ends of groups; how many rows there are room for, which no value
        on the device decides.
    """
    sizes = ends.diff(prepend=ends.new_zeros(1))
    filled = sizes.add(multiple - 1).div(multiple, rounding_mode="floor").clamp(min=1) * multiple
    new_ends = filled.cumsum(0, dtype=torch.int32)
    numbers = torch.arange(rows, device=ends.device)
    group = torch.searchsorted(ends, numbers, right=True)
    shift = (new_ends - filled) - (ends - sizes)
    count = (rows + multiple - 1) // multiple * multiple + len(ends) * multiple
    return numbers + shift.index_select(0, group), new_ends, count


def _padded(rows: Tensor, places: Tensor, count: int) -> Tensor:
    full = rows.new_zeros(count, rows.shape[1], dtype=torch.bfloat16)
    return full.index_copy_(0, places, rows.to(torch.bfloat16))


def _mxfp8(config: Float8) -> tuple[Product, Product]:
    mx = import_torchao("prototype.moe_training.mxfp8_grouped_mm")
    kernels = mx.KernelPreference.EMULATED if config.emulate else mx.KernelPreference.AUTO
    mode = mx.ScaleCalculationMode.RCEIL

    def product(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
        return mx._compute_fwd(rows, matrices, ends, MX_BLOCK, torch.bfloat16, mode, kernels)

    def gradient(rows: Tensor, grad: Tensor, ends: Tensor) -> Tensor:
        return mx._compute_wgrad(grad, rows, ends, MX_BLOCK, torch.bfloat16, mode, False, kernels)

    return product, gradient


def _rowwise(config: Float8) -> tuple[Product, Product]:
    if config.emulate:
        return _emulated_product, _emulated_gradient
    kernels = import_torchao("prototype.moe_training.kernels")
    grouped = import_torchao("prototype.moe_training.fp8_grouped_mm")

    def product(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
        return grouped._to_fp8_rowwise_then_scaled_grouped_mm(
            rows, matrices, ends, torch.bfloat16, pad_token_groups_for_grouped_mm=False
        )

    def gradient(rows: Tensor, grad: Tensor, ends: Tensor) -> Tensor:
        rows, row_scales, grad, grad_scales = kernels.triton_fp8_per_group_colwise_scales_dual(
            rows, grad, ends, torch.float8_e4m3fn, round_scales_to_power_of_2=True
        )
        multiply: Any = vars(torch)["_scaled_grouped_mm"]
        return multiply(
            rows.t(),
            grad,
            row_scales.reciprocal(),
            grad_scales.reciprocal(),
            ends,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )

    return product, gradient


def _emulated_product(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    of_rows, of_columns = rows.abs().amax(1, keepdim=True), matrices.abs().amax(1, keepdim=True)
    rows, matrices = _rounded(rows, _scale(of_rows)), _rounded(matrices, _scale(of_columns))
    return F.grouped_mm(rows, matrices, offs=ends)


def _emulated_gradient(rows: Tensor, grad: Tensor, ends: Tensor) -> Tensor:
    numbers = torch.arange(len(rows), device=ends.device)
    # Rows behind all groups are zeros.
    group = torch.searchsorted(ends, numbers, right=True).clamp(max=len(ends) - 1).unsqueeze(1)

    def rounded(x: Tensor) -> Tensor:
        largest = x.new_zeros(len(ends), x.shape[1])
        largest = largest.scatter_reduce(0, group.expand_as(x), x.abs(), "amax")
        return _rounded(x, _scale(largest).index_select(0, group.squeeze(1)))

    return F.grouped_mm(rounded(rows).t(), rounded(grad), offs=ends)


def _scale(largest: Tensor) -> Tensor:
    utils = import_torchao("float8.float8_utils")
    scale = utils.amax_to_scale(largest, torch.float8_e4m3fn, round_scales_to_power_of_2=True)
    return scale.bfloat16()


def _rounded(x: Tensor, scale: Tensor) -> Tensor:
    """Round bf16 to e4m3 under scales that are powers of two, so that all but this is exact."""
    utils = import_torchao("float8.float8_utils")
    return utils.to_fp8_saturated(x * scale, torch.float8_e4m3fn).bfloat16().div_(scale)
