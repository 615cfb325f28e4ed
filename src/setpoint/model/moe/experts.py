"""Experts: rows of tokens sorted by expert, their matrix products, and sums back to tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from setpoint.config import SetpointError
from setpoint.model.block_modules import VALUES, FeedForward, activation, cast_once
from setpoint.model.initialize import ConstantInit, Initializer, NormalInit, PerExpert
from setpoint.shapes.parameter import Kind
from setpoint.shapes.peers import compute_sent
from setpoint.shapes.placed import local_part
from setpoint.shapes.protocols import GroupedProducts

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig


# Sorting: from the experts of each token to the rows of each expert.


class Assignments(NamedTuple):
    """Rows for experts to compute: first all of expert 0, then of expert 1, and so on.

    Arguments:
        slots: (R,) index of each row in the flattened (T, k) choices; within an expert, in token
            order.
        ends: (E,) end of each expert's rows.
        factors: (R,) factors on the gradient of each row, but not of its weight; None: 1.
    """

    slots: Tensor
    ends: Tensor
    factors: Tensor | None = None


class ExpertLoad(NamedTuple):
    """Choices by expert and by part of the batch; each part has a separate capacity.

    Arguments:
        chosen: (E, parts) int64 number of choices of each expert, dropped ones included.
        taken: (E, parts) int64 number of choices that are not dropped.
        ends: (E * parts,) end of the rows for each expert and part.
    """

    chosen: Tensor
    taken: Tensor
    ends: Tensor


def assign(
    experts: Tensor,
    count: int,
    capacity_factor: float | None = None,
    valid: Tensor | None = None,
    parts: int = 1,
) -> tuple[Assignments, ExpertLoad]:
    """Sort choices by expert.

    Padding is never counted. Without a capacity, it is computed like any token, as in all other
    layers, so that all shapes are known and nothing waits for the device.

    Arguments:
        experts: (T, k) chosen experts.
        count: number of experts.
        capacity_factor: each expert takes its first ceil(T k / E * capacity_factor) choices,
            where T counts the tokens of a part without padding; None: all.
        valid: (T,) False for padding; None if absent.
        parts: number of equal parts of the tokens, each with a separate capacity.
    """
    top_k = experts.shape[1]
    ids = experts.flatten()
    if parts > 1:
        # As if each part had separate experts: their rows are side by side, in the same order.
        part = torch.arange(len(ids), device=ids.device) // (len(ids) // parts)
        ids = ids * parts + part
    # Stable, so that the earliest tokens come first, and every run sorts alike.
    ids, slots = ids.sort(stable=True)
    ends = torch.searchsorted(ids, torch.arange(count * parts, device=ids.device), right=True)
    if valid is None:
        ranks = torch.arange(1, len(ids) + 1, device=ids.device)
        chosen = _differences(ends)
    else:
        valid = valid.repeat_interleave(top_k).index_select(0, slots)
        ranks = valid.cumsum(0)
        chosen = _differences(F.pad(ranks, (1, 0)).index_select(0, ends))
    taken = chosen
    if capacity_factor is not None:
        tokens = chosen.view(count, parts).sum(0).double() / top_k
        taken = chosen.clamp(max=capacity(tokens, top_k, count, capacity_factor).repeat(count))
        kept = ranks <= (chosen.cumsum(0) - chosen + taken).index_select(0, ids)
        slots, ends = slots[kept if valid is None else kept & valid], taken.cumsum(0)
    load = ExpertLoad(chosen.view(count, parts), taken.view(count, parts), ends)
    return Assignments(slots, ends[parts - 1 :: parts]), load


def capacity(tokens: Tensor, top_k: int, experts: int, factor: float) -> Tensor:
    """Maximum number of choices per expert, ceil(tokens * top_k / experts * factor), integer."""
    # Rounded first: 10 * 1.1 is a little above 11, and would be 12.
    return (tokens * (top_k * factor) / experts).round(decimals=6).ceil().long()


def _differences(ends: Tensor) -> Tensor:
    return ends.diff(prepend=ends.new_zeros(1))


# Rows: tokens copied to their experts, and results summed back.


class _Gather(torch.autograd.Function):
    """rows[r] = x[slots[r] // k]; the gradient of a token is the sum over its k choices.

    The backward pass of `index_select` adds row by row in the dtype of x; this one writes each row
    once and sums over k, with fp32 accumulation.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, slots: Tensor, top_k: int) -> Tensor:
        ctx.save_for_backward(slots)
        ctx.shape = (x.shape[0], top_k, x.shape[1])
        return x.index_select(0, slots.div(top_k, rounding_mode="floor"))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (slots,) = ctx.saved_tensors
        tokens, top_k, _ = ctx.shape
        return sum_choices(spread(grad, slots, tokens * top_k).view(ctx.shape)), None, None


def gather(x: Tensor, slots: Tensor, top_k: int) -> Tensor:
    """Copy each token to the rows of its experts."""
    return _Gather.apply(x, slots, top_k)


def spread(rows: Tensor, slots: Tensor, count: int) -> Tensor:
    """Write rows to their slots among the (count, dim) choices; choices without a row are 0."""
    full = rows.new_empty if len(slots) == count else rows.new_zeros
    return full(count, rows.shape[1]).index_copy_(0, slots, rows)


def sum_choices(choices: Tensor) -> Tensor:
    """Sum (T, k, dim) over the choices of each token, accumulating in fp32.

    The dtype is explicit because autocast on CUDA would return sums in fp32: gradients would not
    match the preceding products, and exchanges would send twice the bytes.
    """
    return choices.sum(dim=1, dtype=choices.dtype)


def row_groups(rows: int, ends: Tensor) -> Tensor:
    """(R,) group of each row, such as its expert, from the end of each group's rows."""
    positions = torch.arange(rows, device=ends.device)
    return torch.searchsorted(ends.to(positions.dtype), positions, right=True)


def load_factors(rows: int, taken: Tensor, ends: Tensor, dtype: torch.dtype) -> Tensor:
    """Compute mean load / load for the expert of each row.

    With gradients multiplied by this factor, an expert with few tokens learns as fast as one with
    many.

    Arguments:
        taken: (E, parts) loads by part of the batch.
        ends: (E * parts,) end of the rows for each expert and part.
    """
    load = taken.to(torch.promote_types(dtype, torch.float32))
    factors = (load.mean(dim=0) / load.clamp(min=1)).flatten()
    return factors[row_groups(rows, ends)].to(dtype)


class _ScaleGradient(torch.autograd.Function):
    """The identity; multiplies the gradient of each row by a factor."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, factors: Tensor) -> Tensor:
        ctx.save_for_backward(factors)
        return rows.view_as(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (factors,) = ctx.saved_tensors
        return grad * factors.unsqueeze(1).to(grad.dtype), None


def scale_rows(rows: Tensor, weights: Tensor, assigned: Assignments) -> tuple[Tensor, Tensor]:
    """Scale the inputs of experts by their weights; the outputs keep weights of 1."""
    row_weights = weights.flatten().index_select(0, assigned.slots).unsqueeze(1)
    if assigned.factors is not None:  # factors of outputs, which do not apply to weights
        row_weights = _ScaleGradient.apply(row_weights, 1 / assigned.factors)
    return rows * row_weights, torch.ones_like(weights)


def weighted_sums(rows: Tensor, weights: Tensor, assigned: Assignments) -> Tensor:
    """Sum weight * row over the choices of each token."""
    if assigned.factors is not None:
        rows = _ScaleGradient.apply(rows, assigned.factors)
    choices = spread(rows, assigned.slots, weights.numel()).unflatten(0, weights.shape)
    return sum_choices(choices * weights.unsqueeze(-1).to(rows.dtype))


# Products: (R, in) rows times the (E, in, out) matrix of their expert. `ends` (E,) has the end of
# each expert's rows; the last one is R. One operation for all experts: a compiler and fake tensors
# see fixed shapes (a loop in Python would read the number of rows of each from the data), and the
# backward pass writes one gradient of all matrices, not one for each.

MatrixProduct = Callable[[Tensor, Tensor, Tensor], Tensor]


@torch.library.custom_op("setpoint::looped_product", mutates_args=())
def looped_product(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """Multiply rows by the matrix of their expert, expert by expert."""
    product, start = rows.new_empty(rows.shape[0], matrices.shape[2]), 0
    for matrix, end in zip(matrices.unbind(), ends.tolist(), strict=True):
        torch.mm(rows[start:end], matrix, out=product[start:end])
        start = end
    return product


@torch.library.custom_op("setpoint::looped_gradient", mutates_args=())
def looped_gradient(rows: Tensor, gradient: Tensor, ends: Tensor) -> Tensor:
    """Compute the gradient of the matrices of `looped_product`."""
    result, start = rows.new_empty(len(ends), rows.shape[1], gradient.shape[1]), 0
    for matrix, end in zip(result.unbind(), ends.tolist(), strict=True):
        torch.mm(rows[start:end].t(), gradient[start:end], out=matrix)
        start = end
    return result


@looped_product.register_fake
def _product_shape(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], matrices.shape[2])


@looped_gradient.register_fake
def _gradient_shape(rows: Tensor, gradient: Tensor, ends: Tensor) -> Tensor:
    return rows.new_empty(ends.shape[0], rows.shape[1], gradient.shape[1])


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    rows, matrices, ends = ctx.saved_tensors
    needs_rows, needs_matrices, _ = ctx.needs_input_grad  # matrices under an adapter are frozen
    back = looped_product(gradient, matrices.transpose(1, 2), ends) if needs_rows else None
    return back, looped_gradient(rows, gradient, ends) if needs_matrices else None, None


looped_product.register_autograd(_backward, setup_context=_save)


def grouped_product(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """Multiply rows by the matrix of their expert in one kernel; `ends` are int32."""
    return F.grouped_mm(rows, matrices, offs=ends)


def grouped_gradient(rows: Tensor, gradient: Tensor, ends: Tensor) -> Tensor:
    """Compute the gradient of the matrices of `grouped_product`; `ends` are int32."""
    return F.grouped_mm(rows.t(), gradient, offs=ends)


# PyTorch's kernels need the stride of each matrix to be a multiple of this many bytes.
ALIGNMENT = 16
_CPU_TYPES = (torch.float32, torch.bfloat16, torch.float16)


def why_not_grouped(matrices: Tensor) -> str | None:
    """Reason why PyTorch has no grouped product (forward and backward) for matrices, or None."""
    device, dtype = matrices.device, matrices.dtype
    if not hasattr(F, "grouped_mm"):
        return f"PyTorch {torch.__version__} has none"
    # Its implementation for compilers and fake tensors supports bf16 only.
    is_plain = type(matrices) in (Tensor, nn.Parameter) and not torch.compiler.is_compiling()
    if not is_plain and dtype != torch.bfloat16:
        return f"compiled, it supports only bf16, not {dtype}"
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if major < 8:
            return f"it needs a GPU of compute capability 8.0, this one has {major}.{minor}"
        if dtype != torch.bfloat16:
            return f"on a GPU it supports only bf16, not {dtype}"
    elif device.type != "cpu":
        return f"PyTorch has none for {device.type}"
    elif dtype not in _CPU_TYPES:
        return f"it does not support {dtype}"
    for size in matrices.shape[1:]:
        if size * dtype.itemsize % ALIGNMENT:
            return (
                f"it needs widths that are multiples of {ALIGNMENT // dtype.itemsize} in {dtype}, "
                f"but one is {size}"
            )
    return None


class ExpertKernels(NamedTuple):
    """The operations of `grouped_experts`.

    Arguments:
        product: (R, in) rows, (E, in, out) matrices and `ends`, to (R, out).
        gradient: gradient of the matrices in such a product, from rows, the gradient of the
            product, and `ends`.
        activation: elementwise function, applied to the gate if there is one.
        scales_inputs: whether weights scale the inputs of experts, not their outputs.
    """

    product: MatrixProduct
    gradient: MatrixProduct
    activation: Callable[[Tensor], Tensor]
    top_k: int
    scales_inputs: bool


class _GroupedExperts(torch.autograd.Function):
    """Sum of weight * expert(token) over each token's choices, with (E, in, out) matrices.

    Saves the tokens and the products with gate and up; gathers or recomputes everything else.

    With single operations, autograd would save two copies of each token per choice, and all
    intermediate values between gate and down.
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
        row_weights = weights.flatten().index_select(0, slots).unsqueeze(1)
        if kernels.scales_inputs:
            rows *= row_weights
        gates = None if gate is None else kernels.product(rows, gate, ends)
        values = kernels.product(rows, up, ends)
        del rows
        ctx.save_for_backward(x, gate, up, down, gates, values, row_weights, slots, ends, factors)
        ctx.kernels, ctx.shape = kernels, (*weights.shape, x.shape[1])

        def result() -> Tensor:
            inner = kernels.activation(values if gates is None else gates)
            inner = inner if gates is None else inner.mul_(values)
            inner = inner if kernels.scales_inputs else inner * row_weights
            out = kernels.product(inner, down, ends)
            return sum_choices(spread(out, slots, weights.numel()).view(ctx.shape))

        return compute_sent(result, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, gate, up, down, gates, values, row_weights, slots, ends, factors = ctx.saved_tensors
        product, gradient, activation, top_k, scales_inputs = ctx.kernels
        tokens = slots.div(top_k, rounding_mode="floor")
        with torch.enable_grad():
            source = (values if gates is None else gates).detach().requires_grad_()
            result = activation(source)
        # A copy, as it is scaled in place below: the derivative of ReLU is read off its result.
        inner = result.detach().clone() if gates is None else result.detach() * values

        # From the output back to the inner rows: the matrix down, and the weights of the choices.
        grad_out = grad.index_select(0, tokens)
        grad_inner = product(grad_out, down.transpose(1, 2), ends)
        grad_row_weights = (grad_inner * inner).sum(dim=1)
        scale = torch.ones_like(row_weights) if scales_inputs else row_weights
        if factors is not None:
            scale = scale * factors.unsqueeze(1).to(scale.dtype)
        grad_down = gradient(inner.mul_(scale), grad_out, ends)
        del inner, grad_out

        # Through the activation, and the two products with the tokens.
        grad_inner.mul_(scale)
        grad_result = grad_inner if gates is None else grad_inner * values
        (grad_source,) = torch.autograd.grad(result, source, grad_result)
        grad_values = grad_source if gates is None else grad_inner.mul_(result.detach())
        del result, grad_result
        grad_rows = product(grad_values, up.transpose(1, 2), ends)
        if gate is not None:
            grad_rows += product(grad_source, gate.transpose(1, 2), ends)
        if scales_inputs:
            grad_row_weights = (grad_rows * x.index_select(0, tokens)).sum(dim=1)
            if factors is not None:
                grad_row_weights /= factors
            grad_rows.mul_(row_weights)
        grad_x = sum_choices(spread(grad_rows, slots, len(x) * top_k).view(ctx.shape))
        del grad_rows
        rows = x.index_select(0, tokens)
        if scales_inputs:
            rows.mul_(row_weights)
        grad_gate = None if gate is None else gradient(rows, grad_source, ends)
        del grad_source
        grad_up = gradient(rows, grad_values, ends)
        grad_weights = spread(grad_row_weights.unsqueeze(1), slots, len(x) * top_k)
        grad_weights = grad_weights.view(ctx.shape[:2])
        return grad_x, grad_weights, grad_gate, grad_up, grad_down, None, None, None, None


grouped_experts: Any = _GroupedExperts.apply
"""The function of `_GroupedExperts`; choices without a row add nothing."""

# Modules.


class PackedExperts(nn.Module):
    """All experts in one tensor per projection, (E, in, out), and per bias, (E, out).

    If ranks divide the experts, the tensors are DTensors whose local part contains this rank's
    experts.
    """

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        assert config.moe is not None
        self.implementation = config.moe.implementation
        self.std, self.down_std = config.hidden_std, config.residual_std(layer)
        self.activation = activation(config.activation)
        self.shift = VALUES.get(config.activation)
        self.scales_inputs = config.moe.scale_inputs
        count, dim, inner = config.moe.experts, config.dim, config.moe.width(config.ffn_dim)
        self.projections = ("gate", "up", "down") if config.is_gated else ("up", "down")
        self.gate = nn.Parameter(torch.empty(count, dim, inner)) if config.is_gated else None
        self.up = nn.Parameter(torch.empty(count, dim, inner))
        self.down = nn.Parameter(torch.empty(count, inner, dim))
        self.biased = self.projections if config.moe.bias else ()
        for name in self.biased:
            size = dim if name == "down" else inner
            self.register_parameter(f"{name}_bias", nn.Parameter(torch.empty(count, size)))
        self.adapter: nn.Module | None = None
        """Changes the products with some projections; see `setpoint.adapter`."""
        self.quantized: nn.ModuleDict | None = None
        """Projections that are not tensors; see `setpoint.shapes.stored.StoredExperts`."""
        self.grouped: GroupedProducts | None = None
        """Products in place of `implementation`; see `setpoint.shapes.protocols`."""

    def initializers(self) -> dict[str, Initializer]:
        """Return the initializers of projections, which draw each expert like a separate module."""
        rules: dict[str, Initializer] = {
            name: PerExpert(NormalInit(self.down_std if name == "down" else self.std))
            for name in self.projections
        }
        return rules | {f"{name}_bias": ConstantInit(0.0) for name in self.biased}

    def parameter_kinds(self) -> dict[str, Kind]:
        """See `setpoint.shapes.protocols.KnowsKinds`."""
        return {n: "bias" if n.endswith("_bias") else "matrix" for n in self._parameters}

    def product_weights(self) -> list[str]:
        """See `setpoint.shapes.protocols.HasProducts`."""
        adapters: Any = self.adapter or {}
        lengths = [n for n, adapter in adapters.items() if adapter.magnitude is not None]
        return [name for name in self.projections if name not in lengths]

    def size_here(self) -> tuple[int, int]:
        """See `setpoint.shapes.protocols.HasGroupedProducts`."""
        _, width, dim = local_part(self.down).shape
        return width, dim

    def widths(self) -> dict[str, int]:
        """Return the dimension of the inner width in each projection and its biases."""
        biases = {f"{name}_bias": 1 for name in self.biased if name != "down"}
        return {name: 1 if name == "down" else 2 for name in self.projections} | biases

    def forward(self, x: Tensor, weights: Tensor, assigned: Assignments) -> Tensor:
        """Sum weight * expert(token) over the choices of each token.

        Arguments:
            x: (T, dim).
            weights: (T, k).

        Raises:
            SetpointError: `implementation` is grouped, which is not supported for these matrices.
        """
        x = cast_once(x)
        stored: dict[str, Any] = {} if self.quantized is None else dict(self.quantized.items())
        dense = {
            name: cast_once(local_part(getattr(self, name)))
            for name in self.projections
            if name not in stored
        }
        weights, slots, ends = weights.to(x.dtype), assigned.slots, assigned.ends
        up = dense["up"] if "up" in dense else x.new_empty(1).expand(stored["up"].computed)
        if self.grouped is not None:
            (product, gradient), ends = self.grouped, ends.to(torch.int32)
        elif self._is_grouped(up):
            product, gradient, ends = grouped_product, grouped_gradient, ends.to(torch.int32)
        else:
            product, gradient = looped_product, looped_gradient
        is_plain = self.adapter is None and not stored and not self.biased and self.shift is None
        if is_plain and not torch.compiler.is_compiling():
            gate, down = dense.get("gate"), dense["down"]
            kernels = ExpertKernels(
                product, gradient, self.activation, weights.shape[1], self.scales_inputs
            )
            given = (slots, ends, assigned.factors, kernels)
            return grouped_experts(x, weights, gate, up, down, *given)

        # A compiler decides by itself what to save for backward; and matrices under an adapter
        # have no gradients.
        groups = row_groups(len(slots), ends) if self.biased else None

        def multiply(name: str, rows: Tensor) -> Tensor:
            if name in stored:
                result = stored[name].multiply(rows, product, ends)
                result = self._add_adapter(name, rows, result, stored[name].dense, product, ends)
            else:
                result = product(rows, dense[name], ends)
                result = self._add_adapter(name, rows, result, lambda: dense[name], product, ends)
            if groups is None:
                return result
            return result + local_part(getattr(self, f"{name}_bias")).to(result.dtype)[groups]

        rows = gather(x, slots, weights.shape[1])
        if self.scales_inputs:
            rows, weights = scale_rows(rows, weights, assigned)
        inner = self.activation(multiply(self.projections[0], rows))
        if "gate" in self.projections:
            values = multiply("up", rows)
            inner = inner * (values if self.shift is None else self.shift(values))
        return weighted_sums(multiply("down", inner), weights, assigned)

    def _add_adapter(
        self,
        name: str,
        rows: Tensor,
        result: Tensor,
        matrices: Callable[[], Tensor],
        product: MatrixProduct,
        ends: Tensor,
    ) -> Tensor:
        """Add the adapter's part to products of rows with the matrices of their experts."""
        if self.adapter is None:
            return result

        def low_rank(rows: Tensor, matrices: Tensor) -> Tensor:
            if product is not looped_product and why_not_grouped(matrices) is None:
                return grouped_product(rows, matrices, ends)
            return looped_product(rows, matrices, ends)

        def expand(rows: Tensor, vectors: Tensor) -> Tensor:
            return vectors[row_groups(len(rows), ends)]

        return self.adapter(name, rows, result, matrices, low_rank, expand)

    def _is_grouped(self, up: Tensor) -> bool:
        if self.implementation == "loop":
            return False
        reason = why_not_grouped(up)
        if reason is not None and self.implementation == "grouped":
            raise SetpointError(
                f"model.moe.implementation = grouped: grouped matrix products are not available: "
                f"{reason}; auto uses it where it works, and loop works everywhere"
            )
        return reason is None


class UnpackedExperts(nn.ModuleDict):
    """A separate feed-forward network for each expert."""

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        assert config.moe is not None
        width = config.moe.width(config.ffn_dim)
        super().__init__(
            {
                str(expert): FeedForward(config, layer, width, bias=config.moe.bias)
                for expert in range(config.moe.experts)
            }
        )
        self.scales_inputs = config.moe.scale_inputs

    def forward(self, x: Tensor, weights: Tensor, assigned: Assignments) -> Tensor:
        """Sum weight * expert(token) over the choices of each token; see `PackedExperts`."""
        rows = gather(cast_once(x), assigned.slots, weights.shape[1])
        if self.scales_inputs:
            rows, weights = scale_rows(rows, weights.to(rows.dtype), assigned)
        # An expert without rows is called as well: its gradient is then zero, like that of a packed
        # one, and not missing, which optimizers would treat as frozen.
        parts = zip(self.values(), rows.split(_differences(assigned.ends).tolist()), strict=True)
        out = torch.cat([expert(part) for expert, part in parts])
        return weighted_sums(out, weights, assigned)
