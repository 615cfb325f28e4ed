"""The feed-forward network and its nonlinearities."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn import functional as F

from setpoint.model.autocast import cast_once
from setpoint.model.initialize import Constant, Initializer, Normal
from setpoint.model.scale import hidden_std, residual_std

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig


class FeedForward(nn.Module):
    """Two layers at each position by itself: down(f(up(x))).

    With a gated activation a second projection opens and closes the first:
    down(f(gate(x)) * up(x)) (GLU variants, Shazeer, 2020).

    Arguments:
        config: gives dim, ffn_dim, the activation, and the scale of initialization.
        ffn_dim: inner width; None: the configuration's.
        bias: whether projections have biases; None: as the configuration says.
    """

    def __init__(
        self,
        config: "TransformerConfig",
        ffn_dim: int | None = None,
        *,
        bias: bool | None = None,
    ) -> None:
        super().__init__()
        self.std, self.down_std = hidden_std(config), residual_std(config)
        self.activation = activation(config.activation)
        dim, inner = config.dim, ffn_dim or config.ffn_dim
        bias = config.ffn_bias if bias is None else bias
        self.gate = nn.Linear(dim, inner, bias=bias) if config.is_gated else None
        self.up = nn.Linear(dim, inner, bias=bias)
        self.down = nn.Linear(inner, dim, bias=bias)

    def initializers(self) -> dict[str, Initializer]:
        """Return how each projection starts; the one that writes to the residual is smaller."""
        rules: dict[str, Initializer] = {}
        for name, linear in self.named_children():
            rules[f"{name}.weight"] = Normal(self.down_std if name == "down" else self.std)
            if linear.bias is not None:
                rules[f"{name}.bias"] = Constant(0.0)
        return rules

    def tensor_plan(self) -> dict[str, str]:
        """See `setpoint.shapes.protocols.TensorDivisible`."""
        inner = [name for name, _ in self.named_children() if name != "down"]
        return {"": "shared_input", **dict.fromkeys(inner, "column"), "down": "row"}

    def forward(self, x: Tensor) -> Tensor:
        """Transform each position."""
        x = cast_once(x)
        if self.gate is None:
            return self.down(self.activation(self.up(x)))
        return self.down(self.activation(self.gate(x)) * self.up(x))


def relu_squared(x: Tensor) -> Tensor:
    """Compute max(x, 0)^2 (Primer, So et al., 2021)."""
    # A product keeps the dtype, where autocast on CUDA squares in fp32.
    positive = F.relu(x)
    return positive * positive


_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "swiglu": F.silu,
    "geglu": F.gelu,
    "geglu_tanh": partial(F.gelu, approximate="tanh"),
    "reglu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "relu_squared": relu_squared,
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """Find the function of an activation by the name that a configuration has for it.

    `gelu` is exact, x * Phi(x) (Hendrycks and Gimpel, 2016), and `gelu_tanh` its approximation.
    In the gated ones (those with `glu` in their name, Shazeer, 2020) the function is applied to
    the gate, which then multiplies the other projection.

    Arguments:
        name: a value of `model.activation`.
    """
    return _FUNCTIONS[name]
