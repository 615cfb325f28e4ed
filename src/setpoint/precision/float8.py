"""Low-precision products of linear layers, by torchao's kernels.

A linear layer gets a class that multiplies in float8 (or MXFP8, NVFP4) and stays what it is
otherwise: its weight is a plain parameter in its own dtype, so that adapters, tensor parallelism,
FSDP2, optimizers and checkpoints find what they know. Weights are rounded to bf16 before they are
scaled, on one rank as where they were gathered in bf16 or float8, which gives the same bits.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from setpoint.config import SetpointError
from setpoint.precision.checks import converted, layer_problems, skips
from setpoint.precision.config import MX_BLOCK, multiple_of
from setpoint.shapes.protocols import HasGroupedProducts
from setpoint.shapes.torchao import import_torchao

if TYPE_CHECKING:
    from setpoint.precision.config import Float8

Multiply = Callable[[Tensor, Tensor], Tensor]
"""x (..., in) times W (out, in) transposed, with its gradients; both in bf16, or W in float8."""

HADAMARD_SEED = 0
"""Of the signs of NVFP4's random Hadamard transform: the same on all ranks and in each run."""


def why_not(config: Float8, device: torch.device) -> str | None:
    """Say why there are no such products here.

    Returns:
        the reason; None if there are.
    """
    if importlib.util.find_spec("torchao") is None:
        return "needs the package torchao: pip install 'setpoint[float8]'"
    if config.emulate:
        return None
    needed, name = config.capability
    if device.type != "cuda":
        return (
            f"recipe = {config.recipe} needs a GPU of the generation {name} or newer, and the "
            f"device is {device.type}"
        )
    capability = torch.cuda.get_device_capability(device)
    if capability < needed:
        return (
            f"recipe = {config.recipe} needs a GPU of compute capability "
            f"{'.'.join(map(str, needed))} ({name}) or more, and this "
            f"{torch.cuda.get_device_name(device)} has {'.'.join(map(str, capability))}"
        )
    return None


def require_float8(config: Float8, device: torch.device) -> None:
    """Refuse a device without such products.

    Raises:
        SetpointError: with the reason.
    """
    if reason := why_not(config, device):
        raise SetpointError(f"precision.float8 {reason}\nValid: null, or emulate = true")


def use_float8(config: Float8, model: nn.Module) -> None:
    """Let linear layers, and packed experts if asked, multiply in float8, forward and backward.

    Arguments:
        model: whole; on the meta device, too. It must happen before an adapter is added and before
            ranks divide the model, both of which stand before the class of a module.

    Raises:
        SetpointError: a pattern matches nothing, nothing is left, or sizes do not fit.
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
        from setpoint.precision.float8_experts import grouped_products

        grouped = grouped_products(config)
        for name, part in experts.items():
            part.grouped = None if skips(config, name) else grouped


def require_parts_fit(config: Float8, model: nn.Module, ranks: int) -> None:
    """Refuse parts of matrices, as tensor parallelism leaves them, that have no such product.

    Arguments:
        model: as it is divided.
        ranks: of the axis `tensor`.

    Raises:
        SetpointError: with the name and the size of the part.
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
                f"precision.float8: recipe = {config.recipe} multiplies matrices whose sides are a "
                f"multiple of {multiple}, and the part of {name} on a rank of parallel.{axis} is "
                f"{rows} x {columns}\nValid: fewer ranks of parallel.{axis}, or the name in "
                f"precision.float8.skip"
            )


@contextmanager
def compiled_as_eager(config: Float8 | None, compiles: bool) -> Iterator[None]:
    """Let inductor round where eager does, which scales per row need (pytorch#150859).

    Without it the backward pass takes the scale of a row from values that were never rounded to
    bf16, and casts others.
    """
    is_rowwise = config is not None and config.recipe.startswith("rowwise")
    if not (compiles and is_rowwise):
        yield
        return
    inductor = importlib.import_module("torch._inductor.config")
    with inductor.patch(emulate_precision_casts=True):
        yield


class Float8Product:
    """Stands before the class of a linear layer, and multiplies."""

    weight: Tensor
    bias: Tensor | None
    _parameters: dict[str, nn.Parameter | None]
    _multiply: Multiply
    _multiple: int
    _form: Any
    """torchao's form of a float8 weight (its dtype and the settings of its products); None where
    a weight has no scale of its own as a whole."""

    def forward(self, x: Tensor) -> Tensor:
        """Multiply (..., in) by the weight, and add the bias.

        Returns:
            (..., out) in bf16.
        """
        weight, x = self.weight, x.to(torch.bfloat16)
        if weight.dtype != torch.bfloat16:  # one that was gathered in float8 says that it is
            weight = weight.to(torch.bfloat16)
        rows, missing = x.shape[:-1], -(x.numel() // x.shape[-1]) % self._multiple
        if missing:  # gradients of weights sum over rows, in blocks
            x = F.pad(x.reshape(-1, x.shape[-1]), (0, 0, 0, missing))
        # An expert may have no tokens, which have no largest value.
        product = self._multiply(x, weight) if x.numel() else F.linear(x, weight)
        if missing:
            product = product[:-missing].view(*rows, -1)
        return product if self.bias is None else product + self.bias.to(product.dtype)

    def size_here(self, ranks: int) -> tuple[int, int]:
        """(out, in) of the part of the weight that a rank of the axis `tensor` multiplies with."""
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
    """A class of linear layers in float8: one for all of a kind, as compilers tell them apart."""
    return type(cls.__name__, (Float8Product, cls), {"__module__": cls.__module__})


def _product(config: Float8) -> tuple[Multiply, Any]:
    """The product of a recipe, and what a weight in float8 is told of it; see `Float8Product`."""
    if config.recipe == "nvfp4":
        return _nvfp4(), None
    if config.recipe.startswith("mxfp8"):
        return _mxfp8(config), None
    return _scaled(config)


def _scaled(config: Float8) -> tuple[Multiply, Any]:
    # They take a second to import and say what they lack, so only those who use them hear of it.
    float8 = import_torchao("float8")
    linear = import_torchao("float8.float8_linear")
    # Triton stores a NaN of float8 wrongly (triton-lang/triton#11111); torchao's own entry does so.
    import_torchao("float8._inductor_patch")._patch_inductor_min_max_codegen()
    recipe = float8.Float8LinearConfig.from_recipe_name(config.recipe)
    if config.emulate:
        object.__setattr__(recipe, "emulate", True)
    # A meta layer of torchao's, for the settings of its three products.
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
        # torchao looks at the last two dimensions, and multiplies with all rows.
        rows = x.reshape(-1, x.shape[-1])
        seed = torch.full((1,), HADAMARD_SEED, dtype=torch.int64, device=x.device)
        product = linear.nvfp4_linear(rows, weight, sign_vector=signs, sr_seed=seed)
        return product.view(*x.shape[:-1], -1)

    return multiply
