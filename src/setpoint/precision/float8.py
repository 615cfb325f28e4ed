"""Products of linear layers and packed experts in float8, MXFP8 or NVFP4, by torchao's kernels.

A linear layer gets a class that multiplies in float8 (or MXFP8, NVFP4) and is otherwise unchanged:
its weight is a plain parameter in its own dtype, as adapters, tensor parallelism, FSDP2, optimizers
and checkpoints expect. Weights are rounded to bf16 before they are scaled, both on one rank and
with a gather in bf16 or float8, which gives the same bits.

Each of the three products of packed experts, including the gradients of rows and of matrices, has
one of two forms: rows with one matrix per group, or columns summed over the rows of a group. Groups
are padded to full blocks only during a product, so that only rows and matrices are saved for the
backward pass.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from setpoint.config import SetpointError
from setpoint.precision.config import MX_BLOCK, converted, layer_problems, multiple_of, skips
from setpoint.shapes.protocols import GroupedProducts, HasGroupedProducts
from setpoint.shapes.torchao import import_torchao

if TYPE_CHECKING:
    from setpoint.precision.config import Float8


Multiply = Callable[[Tensor, Tensor], Tensor]
"""x (..., in) times W (out, in) transposed, with its gradients; both in bf16, or W in float8."""

HADAMARD_SEED = 0
"""Of the signs of NVFP4's random Hadamard transform: the same on all ranks and in each run."""


def why_not(config: Float8, device: torch.device) -> str | None:
    """Reason why this machine does not support such products, or None."""
    if importlib.util.find_spec("torchao") is None:
        return "needs the package torchao: pip install 'setpoint[float8]'"
    if config.emulate:
        return None
    needed, name = config.capability
    if device.type != "cuda":
        return (
            f"recipe = {config.recipe} needs a GPU of the {name} generation or newer, but the "
            f"device is {device.type}"
        )
    capability = torch.cuda.get_device_capability(device)
    if capability < needed:
        return (
            f"recipe = {config.recipe} needs a GPU of compute capability "
            f"{'.'.join(map(str, needed))} ({name}) or higher, but this "
            f"{torch.cuda.get_device_name(device)} has {'.'.join(map(str, capability))}"
        )
    return None


def require_float8(config: Float8, device: torch.device) -> None:
    """Refuse a device that does not support these products.

    Raises:
        SetpointError: states the reason.
    """
    if reason := why_not(config, device):
        raise SetpointError(f"precision.float8 {reason}\nValid: null, or emulate = true")


def use_float8(config: Float8, model: nn.Module) -> None:
    """Make linear layers, and optionally packed experts, multiply in float8, forward and backward.

    Arguments:
        model: the full model, possibly on the meta device. Call this before an adapter is added and
            before ranks divide the model, because both insert a class before that of a module.

    Raises:
        SetpointError: a pattern matches nothing, no layers are left, or sizes are not suitable.
    """
    layers = {
        name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)
    }
    experts = {
        name: module for name, module in model.named_modules()
        if isinstance(module, HasGroupedProducts)
    }  # fmt: skip
    sizes = {name: (part.out_features, part.in_features) for name, part in layers.items()}
    of_experts = {name: part.size_here() for name, part in experts.items()}
    problems = [
        f"precision.float8{'.' * bool(problem.path)}{problem.path}: {problem.message}"
        for problem in layer_problems(config, sizes, of_experts)
    ]
    if problems:
        raise SetpointError("\n".join(problems))
    (multiply, form), multiple = _product(config), multiple_of(config.recipe)
    for name in converted(config, sizes):
        module: Any = layers[name]
        module.__class__ = _class_of(type(module))
        module._multiply, module._multiple, module._form = multiply, multiple, form
    if config.experts:
        grouped = grouped_products(config)
        for name, part in experts.items():
            part.grouped = None if skips(config, name) else grouped


def require_parts_fit(config: Float8, model: nn.Module, ranks: int) -> None:
    """Refuse parts of matrices in tensor parallelism that do not support such products.

    Arguments:
        model: the model that is divided.
        ranks: number of ranks of the axis `tensor`.

    Raises:
        SetpointError: names the part and its size.
    """
    multiple = multiple_of(config.recipe)
    for name, module in model.named_modules():
        if isinstance(module, HasGroupedProducts) and module.grouped is not None:
            axis, (rows, columns) = "expert_tensor", module.size_here()
        elif isinstance(module, Float8Product) and ranks > 1:
            axis, (rows, columns) = "tensor", module.size_here(ranks)
        else:
            continue
        if rows % multiple or columns % multiple:
            raise SetpointError(
                f"precision.float8: recipe = {config.recipe} requires matrix dimensions that are "
                f"multiples of {multiple}, but the part of {name} on a rank of parallel.{axis} is "
                f"{rows} x {columns}\nValid: fewer ranks of parallel.{axis}, or the name in "
                f"precision.float8.skip"
            )


class Float8Product:
    """Mixin, placed before the class of a linear layer, that multiplies in float8."""

    weight: Tensor
    bias: Tensor | None
    _parameters: dict[str, nn.Parameter | None]
    _multiply: Multiply
    _multiple: int
    _form: Any
    """torchao's form of a float8 weight (its dtype and the settings of its products); None if
    the full weight has no single scale."""

    def forward(self, x: Tensor) -> Tensor:
        """Multiply (..., in) by the weight, and add the bias.

        Returns:
            (..., out) in bf16.
        """
        weight, x = self.weight, x.to(torch.bfloat16)
        if weight.dtype != torch.bfloat16:  # a weight gathered in float8 reports bf16
            weight = weight.to(torch.bfloat16)
        rows, missing = x.shape[:-1], -(x.numel() // x.shape[-1]) % self._multiple
        if missing:  # gradients of weights sum over rows, in blocks
            x = F.pad(x.reshape(-1, x.shape[-1]), (0, 0, 0, missing))
        # An expert may have no tokens, and so no maximum.
        product = self._multiply(x, weight) if x.numel() else F.linear(x, weight)
        if missing:
            product = product[:-missing].view(*rows, -1)
        return product if self.bias is None else product + self.bias.to(product.dtype)

    def size_here(self, ranks: int) -> tuple[int, int]:
        """(out, in) of the part of the weight with which a rank of the axis `tensor` multiplies."""
        weight: Any = self._parameters["weight"]
        sizes = list(weight.shape)
        names = weight.device_mesh.mesh_dim_names or ()
        for name, placement in zip(names, weight.placements, strict=True):
            if name == "tensor" and not placement.is_replicate():
                sizes[placement.dim] //= ranks
        if counts := [count for _, count in getattr(self, "_rows", ())]:
            sizes[0] = sum(counts)
        return sizes[0], sizes[1]


@cache
def _class_of(cls: type[nn.Module]) -> type:
    """The float8 class for a linear layer class; cached, because compilers distinguish classes."""
    return type(cls.__name__, (Float8Product, cls), {"__module__": cls.__module__})


def _product(config: Float8) -> tuple[Multiply, Any]:
    """The product for a recipe, and the settings for a weight in float8; see `Float8Product`."""
    if config.recipe == "nvfp4":
        return _nvfp4(), None
    if config.recipe.startswith("mxfp8"):
        return _mxfp8(config), None
    return _scaled(config)


def _scaled(config: Float8) -> tuple[Multiply, Any]:
    # They take a second to import and report what is missing, so only their users import them.
    float8 = import_torchao("float8")
    linear = import_torchao("float8.float8_linear")
    # Triton stores a NaN of float8 wrongly (triton-lang/triton#11111); torchao's own entry does so.
    import_torchao("float8._inductor_patch")._patch_inductor_min_max_codegen()
    recipe = float8.Float8LinearConfig.from_recipe_name(config.recipe)
    if config.emulate:
        object.__setattr__(recipe, "emulate", True)
    # A meta layer of torchao, for the settings of its three products.
    with torch.device("meta"):
        settings = linear.Float8Linear(16, 16, bias=False, config=recipe).linear_mm_config
    apply = linear.matmul_with_hp_or_float8_args.apply

    def multiply(x: Tensor, weight: Tensor) -> Tensor:
        return apply(x, weight.t(), settings, recipe)

    if config.recipe != "tensorwise":
        return multiply, None
    return multiply, (recipe.cast_config_weight.target_dtype, settings)


def _mxfp8(config: Float8) -> Multiply:
    linear = import_torchao("prototype.moe_training.mxfp8_linear")
    formats = import_torchao("prototype.mx_formats.config")
    kernels = linear.KernelPreference
    rows, columns = formats.MXFP8Dim0CastKernelChoice, formats.MXFP8Dim1CastKernelChoice
    given = (
        *[torch.float8_e4m3fn] * 3,
        MX_BLOCK,
        kernels.EMULATED if config.emulate else kernels.AUTO,
        rows.TORCH if config.emulate else rows.TRITON,
        columns.TORCH if config.emulate else columns.CUDA,
        formats.ScaleCalculationMode.RCEIL,
        config.recipe == "mxfp8_with_gw_hp",
    )

    def multiply(x: Tensor, weight: Tensor) -> Tensor:
        return linear.mx_mm.apply(x, weight, *given)

    return multiply


def _nvfp4() -> Multiply:
    linear = import_torchao("prototype.moe_training.nvfp4_training.nvfp4_linear")
    drawn = torch.randint(0, 2, (16,), generator=torch.Generator().manual_seed(HADAMARD_SEED))
    signs = tuple((2 * drawn - 1).tolist())

    def multiply(x: Tensor, weight: Tensor) -> Tensor:
        # torchao uses the last two dimensions, and multiplies with all rows.
        rows = x.reshape(-1, x.shape[-1])
        seed = torch.full((1,), HADAMARD_SEED, dtype=torch.int64, device=x.device)
        product = linear.nvfp4_linear(rows, weight, sign_vector=signs, sr_seed=seed)
        return product.view(*x.shape[:-1], -1)

    return multiply


Product = Callable[[Tensor, Tensor, Tensor], Tensor]


class _Kernels(NamedTuple):
    """Products in bf16 of groups of full blocks.

    Arguments:
        product: product of rows, matrices (E, in, out) and ends, as in `GroupedProducts.product`.
        gradient: as in `GroupedProducts.gradient`; None: computed in bf16, with blocks of any size.
        multiple: number of which the rows in a block must be a multiple.
    """

    product: Product
    gradient: Product | None
    multiple: int


def grouped_products(config: Float8) -> GroupedProducts:
    """Make the products for a recipe allowed by `Float8.experts`."""
    by_blocks = config.recipe.startswith("mxfp8")
    product, gradient = _grouped_mxfp8(config) if by_blocks else _rowwise(config)
    exact = config.recipe.endswith("with_gw_hp")
    kernels = _Kernels(product, None if exact else gradient, multiple_of(config.recipe))

    def multiply(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
        return _Grouped.apply(rows, matrices, ends, kernels)

    return GroupedProducts(multiply, partial(_gradient, kernels=kernels))


class _Grouped(torch.autograd.Function):
    """A grouped product; saved tensors are neither padded nor in another layout."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, matrices: Tensor, ends: Tensor, kernels: _Kernels
    ) -> Tensor:
        ctx.save_for_backward(rows, matrices, ends)
        ctx.kernels = kernels
        return _grouped_product(rows, matrices, ends, kernels)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator is untyped
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None]:
        rows, matrices, ends = ctx.saved_tensors
        of_rows = of_matrices = None
        if ctx.needs_input_grad[0]:
            of_rows = _grouped_product(grad, matrices.transpose(1, 2), ends, ctx.kernels)
        if ctx.needs_input_grad[1]:
            of_matrices = _gradient(rows, grad, ends, ctx.kernels)
        return of_rows, of_matrices, None, None


def _grouped_product(rows: Tensor, matrices: Tensor, ends: Tensor, kernels: _Kernels) -> Tensor:
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
    """Positions of rows when each group fills at least one block, and only full blocks.

    Returns:
        (R,) positions of rows; (E,) ends of groups; number of allocated rows, which does not depend
        on values on the device.
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


def _grouped_mxfp8(config: Float8) -> tuple[Product, Product]:
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
    # Rows after all groups are zeros.
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
    """Round bf16 to e4m3 with scales that are powers of two, so that everything else is exact."""
    utils = import_torchao("float8.float8_utils")
    return utils.to_fp8_saturated(x * scale, torch.float8_e4m3fn).bfloat16().div_(scale)
