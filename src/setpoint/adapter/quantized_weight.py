"""Quantized weights and packed experts as modules of their parts, and products with them.

The parts are parameters without gradients, so that whatever moves, shards, saves and loads
parameters handles them. The dense weight exists only during a product, in the forward pass and
again in the backward pass.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from setpoint.adapter.formats import Box, format_of
from setpoint.adapter.targets import UNJOINED, why_not_joined
from setpoint.config import SetpointError
from setpoint.shapes.placed import local_part, local_ranges, put, whole_of
from setpoint.shapes.stored import CHILD, HasCoded

if TYPE_CHECKING:
    from setpoint.adapter.config import Noise, Quantization
    from setpoint.adapter.targets import Site
    from setpoint.shapes.parameter import Kind
    from setpoint.shapes.peers import Peers
    from setpoint.shapes.protocols import DividedParameters, Range
    from setpoint.shapes.stored import Coded

Product = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Product of rows (R, in), by the end of each expert's, with (E, in, out), to (R, out)."""
WHOLE = ("factor", "levels")
"""Parts that apply to a whole matrix."""
KEPT_WHOLE = ("", "whole", "sequence", "shared_input", "shared_output", "sum_gradients")


class NoiseKey(NamedTuple):
    """Random key of a step's noise.

    Arguments:
        std: standard deviation in half quantization steps.
    """

    seed: int
    step: int
    std: float


class StepNoise:
    """Noise of all quantized weights of a model; the loop sets the step.

    The noise depends only on seed, step and weight name, so it is the same in all micro-batches of
    a step, in recomputation, on all ranks, and after a resume.
    """

    def __init__(self, config: Noise, seed: int) -> None:
        self.config, self.seed = config, seed
        self.step = 0
        """Number of steps taken before."""
        # Outside of compiled graphs, which cannot contain a separate generator.
        self.multiply: Any = torch.compiler.disable(_multiply)

    def key(self) -> NoiseKey:
        """Key of the current step."""
        return NoiseKey(self.seed, self.step, self.config.alpha_at(self.step))


class QuantizedWeight(nn.Module):
    """The parts of one matrix.

    Arguments:
        weight: the matrix, with rows divided into blocks; (outputs, inputs) except in `Conv1D`. On
            the meta device, parts are uninitialized.
        name: name in the model, which is part of the noise key.
        noise: noise added in training; None: no noise.
        stands_for: name of the weight in the surrounding module.
        coded: the quantized form in files, one per expert if there are several; None: quantize the
            weight here.
    """

    def __init__(
        self,
        config: Quantization,
        weight: Tensor,
        name: str,
        noise: StepNoise | None = None,
        stands_for: str = "weight",
        coded: Iterable[Sequence[Coded]] | None = None,
    ) -> None:
        super().__init__()
        self.config, self.name, self.stands_for = config, name, stands_for
        self.noise = noise
        self.full_shape = tuple(weight.shape)
        self.rows, self.columns = self._matrix()
        self.first = (0, 0)
        """Row and column of the first weight that this rank has."""
        self.picked: tuple[tuple[int, int], ...] = ()
        """Ranges of rows that this rank computes with, as (first, number); empty: all of its
        rows."""
        self.described = format_of(config).parts(self.rows, self.columns)
        for part, about in self.described.items():
            shape = (*self.full_shape[:-2], *about.shape)
            empty = torch.empty(shape, dtype=about.dtype, device=weight.device)
            self.register_parameter(part, nn.Parameter(empty, requires_grad=False))
        if coded is not None and not weight.is_meta:
            self._keep(coded, weight)
        elif not weight.is_meta:
            self.put(weight)

    def _keep(self, coded: Iterable[Sequence[Coded]], weight: Tensor) -> None:
        """Keep the parts from files, or requantize their values if the format differs."""
        for number, matrices in enumerate(coded):
            parts = self.parts_from(self._joined(matrices))
            first = number if len(self.full_shape) > 2 else 0
            if parts is not None:
                self.take(parts, first)
            else:
                self.put(weight[first : first + 1] if len(self.full_shape) > 2 else weight, first)

    def _joined(self, matrices: Sequence[Coded]) -> Coded:
        """Join matrices that are stacked in a weight.

        Raises:
            SetpointError: the matrices have this format, but different global scales.
        """
        first = matrices[0]
        if len(matrices) == 1 or first.form != self.config.form(self.columns):
            return first
        factors = [float(matrix.parts["factor"]) for matrix in matrices if "factor" in matrix.parts]
        rows = [len(matrix.parts["codes"]) for matrix in matrices]
        why = why_not_joined(self.name, [matrix.form for matrix in matrices], rows, factors)
        if why is not None:
            raise SetpointError(f"adapter.quantize: {why}\nValid: {UNJOINED}")
        names = [name for name in first.parts if name not in WHOLE]
        parts = {name: torch.cat([matrix.parts[name] for matrix in matrices]) for name in names}
        return first._replace(parts={**first.parts, **parts})

    def extra_repr(self) -> str:
        """Text of `print`."""
        many = "".join(f"{count} of " for count in self.full_shape[:-2])
        return f"{type(self.config).__setpoint__.tag}, {many}{self.rows} x {self.columns}"

    def _matrix(self) -> tuple[int, int]:
        """Rows and columns of the matrix that is quantized in one call."""
        return self.full_shape[0], self.full_shape[1]

    def pieces(self, every: bool = False) -> list[tuple[int, int]]:
        """See `setpoint.shapes.stored.Stored`; one piece, as scales may depend on all of it."""
        return [(0, self.full_shape[0])]

    def parameter_kinds(self) -> dict[str, Kind]:
        """See `setpoint.shapes.protocols.KnowsKinds`."""
        return dict.fromkeys(self.described, "vector")

    @torch.no_grad()
    def put(self, full: Tensor, first: int = 0, again: bool = False) -> None:
        """Quantize the whole matrix; each rank keeps its part.

        Arguments:
            first: 0; see `setpoint.shapes.stored.Stored`.
            again: whether the matrix was quantized before, so that its range continues (NVFP4).
        """
        before = self._whole_parts() if again else None
        self.take(self._quantize(full, before), first)

    @torch.no_grad()
    def take(self, parts: Mapping[str, Tensor], first: int = 0) -> None:
        """See `setpoint.shapes.stored.Stored`."""
        assert first == 0
        stored = dict(self.named_parameters())
        for name, part in parts.items():
            put(stored[name], part)

    @torch.no_grad()
    def parts_of(self, full: Tensor) -> dict[str, Tensor]:
        """See `setpoint.shapes.stored.Stored`."""
        return self._quantized(full, None)

    def parts_from(self, coded: Coded) -> dict[str, Tensor] | None:
        """See `setpoint.shapes.stored.Stored`."""
        if coded.form != self.config.form(self.columns):
            return None
        return format_of(self.config).parts_from(coded, self.rows, self.columns)

    def _quantize(self, matrix: Tensor, before: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        """Parts of one matrix, on the device of the parameters."""
        return self._quantized(matrix.to(next(self.parameters()).device), before)

    def _quantized(self, matrix: Tensor, before: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        if not torch.isfinite(matrix.sum(dtype=torch.float64)):
            raise SetpointError(
                f"{self.name} contains non-finite numbers, so no scale can be computed"
            )
        return format_of(self.config, matrix.device).quantize(matrix, before)

    def _whole_parts(self) -> dict[str, Tensor]:
        """Full parts; a collective if they are sharded."""
        return {name: whole_of(part.detach()) for name, part in self.named_parameters()}

    def follow(self, word: str, rows: Sequence[Range], peers: Peers) -> DividedParameters:
        """See `setpoint.shapes.protocols.FollowsDivision`.

        Raises:
            SetpointError: blocks would be cut.
        """
        if word in KEPT_WHOLE:
            return {}, ()
        if rows:
            self.picked = tuple(rows)
            return {}, ()
        dim = 1 if word == "row" else 0
        count = -(-(self.columns, self.rows)[1 - dim] // peers.size)
        block = (self.config.rows, self.config.columns or 1)[dim]
        if count % block or (self.rows, self.columns)[dim] % peers.size:
            raise SetpointError(
                f"parallel.tensor = {peers.size}: blocks of {block} do not divide the {count} "
                f"{'inputs' if dim else 'outputs'} of {self.name} on each rank\nValid: a "
                f"smaller adapter.quantize.group_size, or the layer in adapter.quantize.exclude"
            )
        first = [0, 0]
        first[dim] = peers.rank * count
        self.first = (first[0], first[1])
        return {
            name: dim for name, part in self.described.items() if (part.rows, part.columns)[dim]
        }, ()

    def parts(self) -> tuple[Tensor, ...]:
        """Local parts for computation."""
        return tuple(local_part(getattr(self, name)) for name in self.described)

    def multiply_with(
        self, x: Tensor, product: Callable[..., Tensor], inputs_first: bool, *ends: Tensor
    ) -> Tensor:
        """The product of x with the dense weight, with noise in training."""
        noise = self.noise if self.training else None
        multiply = _multiply if noise is None else noise.multiply
        return multiply(x, self, product, inputs_first, *ends)

    def key(self) -> NoiseKey | None:
        """Noise key for the current step; None outside training."""
        return self.noise.key() if self.noise is not None and self.training else None

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Local dequantized weight, without noise."""
        return self.dense_of(self.parts(), None, dtype)

    @torch.no_grad()
    def dense_whole(self) -> Tensor:
        """The full dequantized weight in fp32; a collective if it is sharded."""
        parts = self._whole_parts()
        device = next(iter(parts.values())).device
        box = Box((0, 0), (self.rows, self.columns))
        return format_of(self.config, device).dequantize(parts, box)

    @torch.no_grad()
    def dense_of(self, parts: Sequence[Tensor], key: NoiseKey | None, dtype: torch.dtype) -> Tensor:
        """Dequantize parts.

        Arguments:
            parts: result of `parts`.
            key: key of the noise to add; None: no noise.
        """
        named = dict(zip(self.described, parts, strict=True))
        box = Box(self.first, (self.rows, self.columns))
        format = format_of(self.config, parts[0].device)
        if key is None:
            dense = format.dequantize(named, box, dtype)
        else:
            dense = format.dequantize(named, box)
            steps = format.half_step(named, box).mul_(key.std)
            down, across = (dense.shape[dim] // steps.shape[dim] for dim in (-2, -1))
            blocks = dense.unflatten(-1, (-1, across)).unflatten(-3, (-1, down))
            drawn = self._draw(key, dense).unflatten(-1, (-1, across)).unflatten(-3, (-1, down))
            blocks.addcmul_(drawn, steps.unsqueeze(-2).unsqueeze(-1))
            dense = dense.to(dtype)
        if self.picked:
            pieces = [dense.narrow(0, first, count) for first, count in self.picked]
            dense = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        return dense

    def _draw(self, key: NoiseKey, like: Tensor) -> Tensor:
        """Standard normal numbers, the same for a weight on every rank."""
        drawn = self._drawn_by(key, self.name, like.device)
        row, column = self.first
        return drawn[row : row + like.shape[0], column : column + like.shape[1]]

    def _drawn_by(self, key: NoiseKey, name: str, device: torch.device) -> Tensor:
        digest = hashlib.sha256(f"{key.seed}/{key.step}/{name}".encode()).digest()
        generator = torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "big"))
        return torch.empty((self.rows, self.columns), device=device).normal_(generator=generator)


class QuantizedExperts(QuantizedWeight):
    """Parts of the matrices of packed experts, (E, in, out), by expert.

    Each expert is quantized as the matrix (out, in) of a separate module: so that packed and
    unpacked experts have equal codes and scales, and ranks may have any experts.

    Arguments:
        outputs_first: whether the matrices are (E, out, in), as in most transformers models.
    """

    def __init__(self, *given: Any, outputs_first: bool = False, **named: Any) -> None:
        self.outputs_first = outputs_first
        super().__init__(*given, **named)

    shares = (1, 1)
    """Into how many parts ranks divide the rows and the columns of a matrix."""

    @property
    def computed(self) -> tuple[int, int, int]:
        """See `setpoint.shapes.stored.StoredExperts`."""
        rows, columns = self.shares
        return self.full_shape[0], self.columns // columns, self.rows // rows

    def follow(self, word: str, rows: Sequence[Range], peers: Peers) -> DividedParameters:
        """See `QuantizedWeight.follow`; experts come before the dimensions of a matrix."""
        divided, of_rows = super().follow(word, rows, peers)
        if divided:
            self.shares = (1, peers.size) if word == "row" else (peers.size, 1)
        return {name: dim + 1 for name, dim in divided.items()}, of_rows

    def _matrix(self) -> tuple[int, int]:
        rows, columns = self.full_shape[1:]
        return (rows, columns) if self.outputs_first else (columns, rows)

    def _turned(self, matrices: Tensor) -> Tensor:
        """Transpose matrices between the layouts of computation and quantization."""
        return matrices if self.outputs_first else matrices.mT

    def pieces(self, every: bool = False) -> list[tuple[int, int]]:
        """See `setpoint.shapes.stored.Stored`: one expert each."""
        first, last = 0, self.full_shape[0]
        if not every:
            ranges = [self._local_ranges(part)[1][0] for part in self.parameters()]
            first, last = min(low for low, _ in ranges), max(high for _, high in ranges)
        return [(expert, expert + 1) for expert in range(first, last)]

    @torch.no_grad()
    def put(self, full: Tensor, first: int = 0, again: bool = False) -> None:
        """Quantize some experts; see `QuantizedWeight.put`.

        Arguments:
            full: (experts, in, out).
            first: index of the first.
        """
        before = self._whole_parts() if again else None
        ranges = [self._local_ranges(part)[1][0] for part in self.parameters()]
        for expert, matrix in enumerate(full.unbind(), first):
            if not any(low <= expert < high for low, high in ranges):
                continue
            previous = (
                None if before is None else {name: part[expert] for name, part in before.items()}
            )
            quantized = self._quantize(self._turned(matrix).contiguous(), previous)
            self.take({name: part.unsqueeze(0) for name, part in quantized.items()}, expert)

    @torch.no_grad()
    def take(self, parts: Mapping[str, Tensor], first: int = 0) -> None:
        stored = {name: self._local_ranges(bounds) for name, bounds in self.named_parameters()}
        for name, part in parts.items():
            local, (experts, *sides) = stored[name]
            for expert, expert_part in enumerate(part.unbind(), first):
                if experts[0] <= expert < experts[1]:
                    local[expert - experts[0]].copy_(
                        expert_part[tuple(slice(*bounds) for bounds in sides)]
                    )

    def parts_from(self, coded: Coded) -> dict[str, Tensor] | None:
        """See `setpoint.shapes.stored.Stored`; for a single expert."""
        parts = super().parts_from(coded)
        return parts and {name: part.unsqueeze(0) for name, part in parts.items()}

    @torch.no_grad()
    def parts_of(self, full: Tensor) -> dict[str, Tensor]:
        experts = [
            self._quantized(self._turned(matrix).contiguous(), None) for matrix in full.unbind()
        ]
        return {
            name: torch.stack([expert_parts[name] for expert_parts in experts])
            for name in self.described
        }

    def _local_ranges(self, parameter: Tensor) -> tuple[Tensor, list[tuple[int, int]]]:
        ranges = local_ranges(parameter)
        assert ranges is not None, "ranks store ranges of experts or of their dimensions"
        return ranges

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """See `QuantizedWeight.dense`; for the local experts."""
        return self._turned(super().dense(dtype))

    def dense_whole(self) -> Tensor:
        return self._turned(super().dense_whole())

    def multiply(self, rows: Tensor, product: Product, ends: Tensor) -> Tensor:
        """See `setpoint.shapes.stored.StoredExperts`."""
        return self.multiply_with(rows, product, False, ends)

    def _draw(self, key: NoiseKey, like: Tensor) -> Tensor:
        path, _, weight_name = self.name.rpartition(".")
        first = self._local_ranges(next(self.parameters()))[1][0][0]
        names = (f"{path}.{first + number}.{weight_name}.weight" for number in range(len(like)))
        drawn = torch.stack([self._drawn_by(key, name, like.device) for name in names])
        row, column = self.first
        return drawn[:, row : row + like.shape[1], column : column + like.shape[2]]


class _QuantizedProduct(torch.autograd.Function):
    """A product with a quantized weight; only the gradient of x is computed.

    `tensors` are the ends of experts, if there are any, and the parts of the weight.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: QuantizedWeight,
        product: Callable[..., Tensor],
        inputs_first: bool,
        *tensors: Tensor,
    ) -> Tensor:
        ctx.weight, ctx.product, ctx.inputs_first = weight, product, inputs_first
        ctx.key = weight.key()
        ctx.save_for_backward(*tensors)
        count = len(tensors) - len(weight.described)
        dense = weight.dense_of(tensors[count:], ctx.key, x.dtype)
        return product(x, dense if inputs_first else dense.mT, *tensors[:count])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        tensors = ctx.saved_tensors  # can be read only once
        count = len(tensors) - len(ctx.weight.described)
        dense = ctx.weight.dense_of(tensors[count:], ctx.key, grad.dtype)
        back = ctx.product(grad, dense.mT if ctx.inputs_first else dense, *tensors[:count])
        return back, None, None, None, *(None for _ in tensors)


def _multiply(
    x: Tensor,
    weight: QuantizedWeight,
    product: Callable[..., Tensor],
    inputs_first: bool = False,
    *ends: Tensor,
) -> Any:
    return _QuantizedProduct.apply(x, weight, product, inputs_first, *ends, *weight.parts())


def product(x: Tensor, weight: QuantizedWeight, inputs_first: bool = False) -> Tensor:
    """Multiply by a quantized weight, in the compute dtype.

    Arguments:
        x: (..., inputs).
        inputs_first: whether the weight is (inputs, outputs).
    """
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    return weight.multiply_with(x, _matmul, inputs_first)


def _matmul(x: Tensor, matrix: Tensor) -> Tensor:
    return x @ matrix


class _Quantized:
    """Mixin of modules with a quantized weight."""

    quantized: QuantizedWeight

    @property
    def weight(self) -> Tensor:
        """The dense weight, dequantized at each access."""
        return self.quantized.dense()


class _QuantizedLinear(_Quantized):
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        output = product(x, self.quantized)
        return output if self.bias is None else output + self.bias.to(output.dtype)


class _QuantizedConv1D(_Quantized):
    """transformers' `Conv1D`, whose weight is (inputs, outputs)."""

    bias: Tensor

    def forward(self, x: Tensor) -> Tensor:
        output = product(x, self.quantized, inputs_first=True)
        return output + self.bias.to(output.dtype)


def quantize_module(
    config: Quantization,
    module: nn.Module,
    name: str,
    noise: StepNoise | None = None,
    coded: Iterable[Sequence[Coded]] | None = None,
) -> None:
    """Replace the weight of a linear layer with a quantized one."""
    weight = module._parameters.pop("weight")
    assert weight is not None
    quantized = QuantizedWeight(config, weight.detach(), f"{name}.weight", noise, coded=coded)
    module.add_module(CHILD, quantized)
    is_linear = isinstance(module, nn.Linear)
    module.__class__ = class_with(type(module), _QuantizedLinear if is_linear else _QuantizedConv1D)


def quantize_experts(
    config: Quantization,
    experts: nn.Module,
    name: str,
    noise: StepNoise | None = None,
    coded: Iterable[Sequence[Coded]] | None = None,
    outputs_first: bool = False,
) -> None:
    """Replace one tensor of packed experts with a quantized one."""
    weight_name = name.rpartition(".")[2]
    weight = experts._parameters[weight_name]
    assert weight is not None
    experts.register_parameter(weight_name, None)
    children: Any = getattr(experts, CHILD, None)
    if children is None:
        children = nn.ModuleDict()
        setattr(experts, CHILD, children)
    given = (config, weight.detach(), name, noise, weight_name, coded)
    children[weight_name] = QuantizedExperts(*given, outputs_first=outputs_first)


@cache
def class_with(cls: type[nn.Module], behaves: type) -> type:
    """A subclass with a mixin, cached so that compilers see one class per kind."""
    return type(cls.__name__, (behaves, cls), {"__module__": cls.__module__})


def quantize_base(
    config: Quantization, model: nn.Module, sites: Iterable[Site], seed: int
) -> StepNoise | None:
    """Replace weights of a model with quantized ones.

    Arguments:
        model: model on the meta device, where parts are uninitialized, or with weights, which are
            quantized and freed one after another.
        sites: linear layers and packed experts.
        seed: seed of the noise.

    Returns:
        the noise, for which the training loop sets the step; None without noise.
    """
    noise = None if config.noise is None else StepNoise(config.noise, seed)
    for site in sites:
        holder = model.get_submodule(site.holder)
        coded = model.coded(site.weight) if isinstance(model, HasCoded) else None
        if site.form == "experts":
            turned = site.outputs_first
            quantize_experts(config, holder, site.path, noise, coded, outputs_first=turned)
        else:
            quantize_module(config, holder, site.path, noise, coded)
    return noise


def noise_of(model: nn.Module) -> StepNoise | None:
    """Noise of a model's quantized weights; None if there is none."""
    noises = (m.noise for m in model.modules() if isinstance(m, QuantizedWeight))
    return next((noise for noise in noises if noise is not None), None)


@torch.no_grad()
def make_dense(
    layer: nn.Module, weight: Tensor | None = None, dtype: torch.dtype = torch.float32
) -> None:
    """Replace the quantized weight of a layer or of experts with a dense, frozen one.

    Arguments:
        layer: a whole layer, on one rank, without an adapter; unchanged if it is not quantized.
        weight: weight of a linear layer; None: the dequantized weight.
        dtype: dtype of that weight.
    """
    child = layer._modules.get(CHILD)
    if isinstance(child, QuantizedWeight):
        weight = child.dense(dtype) if weight is None else weight
        del layer._modules[CHILD]
        layer.__class__ = type(layer).__bases__[1]  # the class that it had before
        layer.register_parameter("weight", nn.Parameter(weight, requires_grad=False))
    elif isinstance(child, nn.ModuleDict):
        for name, quantized in child.items():
            assert isinstance(quantized, QuantizedWeight)
            dense = nn.Parameter(quantized.dense(dtype).contiguous(), requires_grad=False)
            layer.register_parameter(name, dense)
        setattr(layer, CHILD, None)
