"""The nonlinearities of feed-forward networks."""

from collections.abc import Callable
from functools import partial

from torch import Tensor
from torch.nn import functional as F


def relu_squared(x: Tensor) -> Tensor:
    """Compute max(x, 0)^2 (Primer, So et al., 2021)."""
    return F.relu(x).square()


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
