"""A quantized weight as a module of its parts, and the product with it.

The parts are parameters that never get a gradient, so that whatever moves, divides, saves and loads
parameters does so with them. The dense weight exists while a product is computed, in the forward
pass and again in the backward pass, and is kept in neither.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from setpoint.adapter.quantize.backend import format_of
from setpoint.adapter.quantize.formats import Box
from setpoint.config import SetpointError
from setpoint.shapes.placed import as_placed, whole_of

if TYPE_CHECKING:
    from setpoint.adapter.quantize.config import Noise, Quantization
    from setpoint.shapes.parameter import Kind
    from setpoint.shapes.peers import Peers

CHILD = "quantized"
"""The name of the module with the parts, beneath the one whose weight they are."""
KEPT_WHOLE = ("", "whole", "sequence", "shared_input", "shared_output", "sum_gradients")


class NoiseKey(NamedTuple):
    """What the noise of a step is drawn by.

    Arguments:
        std: standard deviation in halves of a quantization step.
    """

    seed: int
    step: int
    std: float


class StepNoise:
    """The noise of all quantized weights of a model; the loop says which step is taken.

    It depends on the seed, the step and the name of a weight alone: it is the same in all
    micro-batches of a step, in what is recomputed, on all ranks and in a resumed run.
    """

    def __init__(self, config: Noise, seed: int) -> None:
        self.config, self.seed = config, seed
        self.step = 0
        """How many steps were taken before."""
        # Outside of compiled graphs: a generator of the step's own cannot be within one.
        self.multiply: Any = torch.compiler.disable(_multiply)

    def key(self) -> NoiseKey:
        """What is drawn by now."""
        return NoiseKey(self.seed, self.step, self.config.alpha_at(self.step))


class QuantizedWeight(nn.Module):
    """The parts of one matrix.

    Arguments:
        weight: the matrix, (outputs, inputs) or any other two or more dimensions, of which the last
            is divided into blocks; on the meta device, where it has no values yet.
        name: in the model, which noise is drawn by.
        noise: that is added in training; None: none.
        stands_for: its name in the module around it.
    """

    def __init__(
        self,
        config: Quantization,
        weight: Tensor,
        name: str,
        noise: StepNoise | None = None,
        stands_for: str = "weight",
    ) -> None:
        super().__init__()
        self.config, self.name, self.stands_for = config, name, stands_for
        self.noise = noise
        self.whole = tuple(weight.shape)
        self.columns = self.whole[-1]
        self.rows = weight.numel() // self.columns
        self.first = (0, 0)
        """Row and column of the first weight that this rank has."""
        self.picked: tuple[tuple[int, int], ...] = ()
        """Rows that this rank computes with, (first, number) each; none for all that it has."""
        self.described = format_of(config).parts(self.rows, self.columns)
        for part, about in self.described.items():
            empty = torch.empty(about.shape, dtype=about.dtype, device=weight.device)
            self.register_parameter(part, nn.Parameter(empty, requires_grad=False))
        if not weight.is_meta:
            self.put(weight)

    def extra_repr(self) -> str:
        """What `print` shows."""
        return f"{type(self.config).__setpoint__.tag}, {self.rows} x {self.columns}"

    def parameter_kinds(self) -> dict[str, Kind]:
        """See `setpoint.shapes.adapted.KnowsKinds`."""
        return dict.fromkeys(self.described, "vector")

    @torch.no_grad()
    def put(self, full: Tensor, again: bool = False) -> None:
        """Quantize the whole matrix; each rank keeps its part.

        Arguments:
            again: whether the matrix is one that has changed, whose range goes on (NVFP4).

        Raises:
            SetpointError: it holds numbers that are not finite.
        """
        held = self._parameters
        device = next(each.device for each in held.values() if each is not None)
        matrix = full.to(device).reshape(self.rows, self.columns)
        if not torch.isfinite(matrix.sum(dtype=torch.float64)):
            raise SetpointError(f"{self.name} holds numbers that are not finite: it has no scale")
        before = None
        if again:
            before = {
                name: whole_of(each.detach()) for name, each in held.items() if each is not None
            }
        for name, part in format_of(self.config, device).quantize(matrix, before).items():
            parameter = held[name]
            assert parameter is not None
            parameter.copy_(as_placed(part, parameter))

    def follow(
        self, word: str, rows: Sequence[tuple[int, int]], peers: Peers
    ) -> tuple[dict[str, int], tuple[str, ...]]:
        """See `setpoint.shapes.adapted.FollowsDivision`.

        Raises:
            SetpointError: ranks would have parts of blocks.
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
                f"{'inputs' if dim else 'outputs'} of {self.name} that each rank has\nValid: a "
                f"smaller adapter.quantize.group_size, or the layer in adapter.quantize.exclude"
            )
        first = [0, 0]
        first[dim] = peers.rank * count
        self.first = (first[0], first[1])
        return {
            name: dim for name, part in self.described.items() if (part.rows, part.columns)[dim]
        }, ()

    def parts(self) -> tuple[Tensor, ...]:
        """What this rank has of each part."""
        return tuple(getattr(self, name) for name in self.described)

    def key(self) -> NoiseKey | None:
        """What noise is drawn by now: none outside training."""
        return self.noise.key() if self.noise is not None and self.training else None

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weight as this rank computes with it, without noise."""
        return self.dense_of(self.parts(), None, dtype)

    @torch.no_grad()
    def dense_whole(self) -> Tensor:
        """All of the weight, in fp32; where ranks hold parts of it, all of them take part."""
        held = self._parameters
        parts = {name: whole_of(each.detach()) for name, each in held.items() if each is not None}
        shape = (self.rows, self.columns)
        device = next(iter(parts.values())).device
        return format_of(self.config, device).dequantize(parts, Box((0, 0), shape)).view(self.whole)

    @torch.no_grad()
    def dense_of(self, parts: Sequence[Tensor], key: NoiseKey | None, dtype: torch.dtype) -> Tensor:
        """Dequantize parts.

        Arguments:
            parts: as `parts` gives them.
            key: of the noise that is added; None: none.
        """
        named = dict(zip(self.described, parts, strict=True))
        box = Box(self.first, (self.rows, self.columns))
        format = format_of(self.config, parts[0].device)
        if key is None:
            found = format.dequantize(named, box, dtype)
        else:
            found = format.dequantize(named, box)
            steps = format.half_step(named, box).mul_(key.std)
            sizes = (found.shape[0] // steps.shape[0], found.shape[1] // steps.shape[1])
            blocks = found.unflatten(1, (-1, sizes[1])).unflatten(0, (-1, sizes[0]))
            drawn = self._draw(key, found).unflatten(1, (-1, sizes[1])).unflatten(0, (-1, sizes[0]))
            blocks.addcmul_(drawn, steps[:, None, :, None])
            found = found.to(dtype)
        if self.picked:
            pieces = [found.narrow(0, first, count) for first, count in self.picked]
            found = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        return found.unflatten(0, (-1, *self.whole[1:-1])) if len(self.whole) > 2 else found

    def _draw(self, key: NoiseKey, like: Tensor) -> Tensor:
        """Standard normal numbers: the same for the same weight on whichever rank it lies."""
        digest = hashlib.sha256(f"{key.seed}/{key.step}/{self.name}".encode()).digest()
        generator = torch.Generator(like.device).manual_seed(int.from_bytes(digest[:8], "big"))
        shape = (self.rows, self.columns)
        drawn = torch.empty(shape, device=like.device).normal_(generator=generator)
        row, column = self.first
        return drawn[row : row + like.shape[0], column : column + like.shape[1]]


class _Product(torch.autograd.Function):
    """x W^T with a quantized W, of which the gradient of x alone is computed."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, held: QuantizedWeight, inputs_first: bool, *parts: Tensor
    ) -> Tensor:
        ctx.held, ctx.inputs_first, ctx.key = held, inputs_first, held.key()
        ctx.save_for_backward(*parts)
        dense = held.dense_of(parts, ctx.key, x.dtype)
        return x @ dense if inputs_first else F.linear(x, dense)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator is untyped
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, ...]:
        parts = ctx.saved_tensors  # which may be read once
        dense = ctx.held.dense_of(parts, ctx.key, grad.dtype)
        back = F.linear(grad, dense) if ctx.inputs_first else grad @ dense
        return back, None, None, *(None for _ in parts)


def product(x: Tensor, held: QuantizedWeight, inputs_first: bool = False) -> Tensor:
    """Multiply by a quantized weight, in the compute dtype.

    Arguments:
        x: (..., inputs).
        inputs_first: whether the weight is (inputs, outputs).
    """
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    multiply = held.noise.multiply if held.noise is not None and held.training else _multiply
    return multiply(x, held, inputs_first)


def _multiply(x: Tensor, held: QuantizedWeight, inputs_first: bool) -> Any:
    return _Product.apply(x, held, inputs_first, *held.parts())


class _Quantized:
    """What stands before the class of a module whose weight is quantized."""

    quantized: QuantizedWeight

    @property
    def weight(self) -> Tensor:
        """The dense weight, made anew in each reading."""
        return self.quantized.dense()


class _QuantizedLinear(_Quantized):
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        found = product(x, self.quantized)
        return found if self.bias is None else found + self.bias.to(found.dtype)


class _QuantizedConv1D(_Quantized):
    """`Conv1D` of transformers, whose weight is (inputs, outputs)."""

    bias: Tensor

    def forward(self, x: Tensor) -> Tensor:
        found = product(x, self.quantized, inputs_first=True)
        return found + self.bias.to(found.dtype)


def quantize_module(
    config: Quantization, module: nn.Module, name: str, noise: StepNoise | None = None
) -> None:
    """Replace the weight of a linear layer by a quantized one.

    Arguments:
        module: changed in place; its other parameters stay.
        name: in the model.
    """
    weight = module._parameters.pop("weight")
    assert weight is not None
    own = QuantizedWeight(config, weight.detach(), f"{name}.weight", noise)
    module.add_module(CHILD, own)
    is_linear = isinstance(module, nn.Linear)
    module.__class__ = _class_of(type(module), _QuantizedLinear if is_linear else _QuantizedConv1D)


@cache
def _class_of(cls: type[nn.Module], behaves: type) -> type:
    """A class of quantized modules: one for all of a kind, as compilers tell them apart."""
    return type(cls.__name__, (behaves, cls), {"__module__": cls.__module__})
