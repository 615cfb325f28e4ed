"""Norms and feed-forward networks of a transformer block."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from setpoint.config import SetpointError, call_component
from setpoint.config.draft.config import owner_of
from setpoint.model.initialize import ConstantInit, Initializable, Initializer, NormalInit, Values
from setpoint.shapes.outcome import compute_dtype

if TYPE_CHECKING:
    from setpoint.model.config import (
        ImportedNorm,
        LayerNormConfig,
        RMSNormConfig,
        TransformerConfig,
    )


def cast_once(x: Tensor) -> Tensor:
    """Cast to the autocast dtype, if any, before several projections read the same tensor.

    Otherwise, autocast would cast the input of every matrix product, forward and backward.
    """
    return x.to(compute_dtype(x))


class FeedForward(nn.Module):
    """Feed-forward network of each position: down(f(up(x))).

    With a gated activation, down(f(gate(x)) * up(x)) (GLU variants, Shazeer, 2020).

    Arguments:
        layer: index in the whole model, from 0.
        ffn_dim, bias: inner width, and whether projections have biases; None: as configured.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer: int,
        ffn_dim: int | None = None,
        *,
        bias: bool | None = None,
    ) -> None:
        super().__init__()
        self.std, self.down_std = config.hidden_std, config.residual_std(layer)
        self.activation = activation(config.activation)
        self.shift = VALUES.get(config.activation)
        dim, inner = config.dim, ffn_dim or config.ffn_dim
        bias = config.ffn_bias if bias is None else bias
        self.gate = nn.Linear(dim, inner, bias=bias) if config.is_gated else None
        self.up = nn.Linear(dim, inner, bias=bias)
        self.down = nn.Linear(inner, dim, bias=bias)

    def initializers(self) -> dict[str, Initializer]:
        """Initial values, smaller for the projection to the residual stream."""
        return linear_rules(self, self.std, down=self.down_std)

    def tensor_plan(self) -> dict[str, str]:
        """Division by the inner width."""
        inner = [name for name, _ in self.named_children() if name != "down"]
        return {"": "shared_input", **dict.fromkeys(inner, "column"), "down": "row"}

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, S, dim) to (B, S, dim)."""
        x = cast_once(x)
        if self.gate is None:
            return self.down(self.activation(self.up(x)))
        # In this order: backward sums the gradients of x in the reverse one.
        gate = self.activation(self.gate(x))
        values = self.up(x)
        return self.down(gate * (values if self.shift is None else self.shift(values)))


def linear_rules(module: nn.Module, std: float, **others: float) -> dict[str, Initializer]:
    """Initial values of the linear layers of a module; `others` have their own deviations."""
    rules: dict[str, Initializer] = {}
    for name, part in module.named_children():
        if isinstance(part, nn.Linear):
            rules[f"{name}.weight"] = NormalInit(others.get(name, std))
            if part.bias is not None:
                rules[f"{name}.bias"] = ConstantInit(0.0)
    return rules


def relu_squared(x: Tensor) -> Tensor:
    """Compute max(x, 0)^2 (Primer, So et al., 2021)."""
    # A product keeps the dtype; autocast on CUDA squares in fp32.
    positive = F.relu(x)
    return positive * positive


CLAMP = 7.0


def silu_clamped(x: Tensor) -> Tensor:
    """Compute y * sigmoid(1.702 y) with y = min(x, 7) (GPT-OSS, 2025)."""
    x = x.clamp(max=CLAMP)
    return x * torch.sigmoid(1.702 * x)


VALUES: dict[str, Callable[[Tensor], Tensor]] = {
    "swiglu_clamped": lambda x: x.clamp(-CLAMP, CLAMP) + 1.0
}
"""Functions of the second projection of gated activations; the identity for all others."""
_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "swiglu": F.silu,
    "swiglu_clamped": silu_clamped,
    "geglu": F.gelu,
    "geglu_tanh": partial(F.gelu, approximate="tanh"),
    "reglu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "relu_squared": relu_squared,
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The function for a value of `model.activation`; gated ones apply it to the gate.

    `gelu` is exact, x * Phi(x) (Hendrycks and Gimpel, 2016), and `gelu_tanh` its approximation.
    """
    return _FUNCTIONS[name]


def build_norm(config: TransformerConfig, dim: int) -> nn.Module:
    """Build one norm of a model; `config.norm.build` would return the same object each time."""
    return owner_of(type(config.norm))(config.norm, dim=dim, eps=config.norm_eps)


class LayerNorm(nn.Module):
    """Layer norm, with statistics in fp32 at least.

    y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias (layer norm, Ba et al., 2016).
    """

    def __init__(self, config: LayerNormConfig, *, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim)) if config.bias else None

    def initializers(self) -> dict[str, Initializer]:
        """Initial values that make the norm the identity."""
        rules: dict[str, Initializer] = {"weight": ConstantInit(1.0)}
        if self.bias is not None:
            rules["bias"] = ConstantInit(0.0)
        return rules

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last axis; (..., dim) in the dtype of x, or in fp32 under autocast."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.layer_norm(x, (x.shape[-1],), self.weight.to(x.dtype), bias, self.eps)


FUSED: dict[type[Tensor], tuple[torch.dtype, ...]] = {Tensor: (torch.float32,)}
"""Dtypes of a class of tensors with our own RMSNorm on a CPU. A dry run adds its fake tensors, with
the dtypes of the fused kernel of the device that it plans for."""


class RMSNorm(nn.Module):
    """Root-mean-square norm, with statistics in fp32 at least.

    y = x / sqrt(mean(x^2) + eps) * weight (RMSNorm, Zhang and Sennrich, 2019), or with a
    zero-centered weight * (1 + weight) (Gemma, 2024).
    """

    def __init__(self, config: RMSNormConfig, *, dim: int, eps: float) -> None:
        super().__init__()
        self.zero_centered = config.zero_centered
        self.eps = eps
        self.weight = nn.Parameter(torch.full((dim,), self._identity))

    @property
    def _identity(self) -> float:
        return 0.0 if self.zero_centered else 1.0

    def initializers(self) -> dict[str, Initializer]:
        """Initial values that make the norm the identity."""
        return {"weight": ConstantInit(self._identity)}

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last axis."""
        # 1 + weight in fp32: bf16 has too few digits near one for a small weight.
        factor = 1.0 + self.weight.float() if self.zero_centered else self.weight
        return rms_norm(x, factor, self.eps)


class UnweightedNorm(nn.Module):
    """RMSNorm without a weight, for queries and keys."""

    def __init__(self, config: TransformerConfig, dim: int) -> None:
        super().__init__()
        self.eps = config.norm_eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last axis."""
        return rms_norm(x, x.new_ones(x.shape[-1]), self.eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Apply RMSNorm to the last axis."""
    # Eager PyTorch has a fused backward on CUDA but none on the CPU, and compilers fuse the plain
    # form: only eager, undistributed fp32 on a CPU uses Setpoint's function.
    formats = () if torch.compiler.is_compiling() else FUSED.get(type(x), ())
    if x.is_cpu and x.dtype == weight.dtype and x.dtype in formats:
        return rms_norm_cpu(x, weight, eps)
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), eps)


class _RMSNormFunction(torch.autograd.Function):
    """y = x r w with r = 1 / sqrt(mean(x^2) + eps).

    With n = x r and G = g w the gradients are dw = sum(g n) over all vectors and dx = r (G - n
    mean(G n)). Layer normalization with mean zero and deviation 1/r has the same dw and dx = r (G -
    mean(G) - n mean(G n)). PyTorch has a fused CPU kernel for the latter, to whose result we add
    back the term r mean(G) that it subtracts.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        r = _scale(x, eps)
        ctx.save_for_backward(x, weight, r)
        return (x * r).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
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
        return _RMSNormFunction.apply(x, weight, eps)
    # Without the overhead of an autograd function, which shows in generation.
    return (x * _scale(x, eps)).mul_(weight)


def _scale(x: Tensor, eps: float) -> Tensor:
    """(..., 1) 1 / sqrt(mean(x^2) + eps)."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()


def build_imported(config: ImportedNorm, *, dim: int, eps: float) -> nn.Module:
    """Build the norm of an `import` section, and validate it with a vector.

    The norm is built on the CPU; its values there are its initial values, even via the meta device.
    Random numbers come from a fresh generator, equal on all ranks.

    Arguments:
        dim: size of the last axis; passed as `dim` or `normalized_shape`.

    Raises:
        SetpointError: the target does not build a module that preserves the shape of vectors.
    """
    runtime = {"dim": dim, "normalized_shape": dim, "eps": eps}
    title = f"model.norm.target = {config.target}"
    # Building and trying it must not advance the random state.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.no_grad():
        torch.default_generator.manual_seed(0)
        norm = call_component(config, (), runtime, optional=tuple(runtime))
        if not isinstance(norm, nn.Module):
            name = type(norm).__name__
            raise SetpointError(f"{title} makes an object of type {name}, not a torch module")
        try:
            tried = norm(torch.zeros(1, 2, dim))
        except Exception as error:
            raise SetpointError(
                f"{title} cannot be called with (..., {dim}) vectors: "
                f"{type(error).__name__}: {error}"
            ) from error
    if not isinstance(tried, Tensor) or tried.shape != (1, 2, dim):
        got = tuple(tried.shape) if isinstance(tried, Tensor) else type(tried).__name__
        raise SetpointError(f"{title} returns {got} for vectors of shape (1, 2, {dim})")
    if not isinstance(norm, Initializable):
        values = {name: Values(tensor.detach().clone()) for name, tensor in norm.named_parameters()}
        norm.initializers = partial(dict, values)  # pyright: ignore[reportArgumentType]
    return norm.to(torch.get_default_device())
