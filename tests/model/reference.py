"""Norms and feed-forward networks once more, in plain mathematics.

The whole model is in tests/acceptance/plain_model.py.
"""

import math

import torch
from torch import Tensor


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) / x.shape[-1] + eps) * weight


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | float, eps: float) -> Tensor:
    x = x - x.sum(-1, keepdim=True) / x.shape[-1]
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) / x.shape[-1] + eps) * weight + bias


def linear(weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def gelu_tanh(x: Tensor) -> Tensor:
    return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def positive(x: Tensor) -> Tensor:
    return x * (x > 0)


ACTIVATIONS = {
    "swiglu": lambda x: x / (1 + torch.exp(-x)),
    "swiglu_clamped": lambda x: x.clamp(max=7) / (1 + torch.exp(-1.702 * x.clamp(max=7))),
    "geglu": gelu,
    "geglu_tanh": gelu_tanh,
    "reglu": positive,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": positive,
    "relu_squared": lambda x: positive(x) ** 2,
}


def feed_forward(weights: dict[str, Tensor], x: Tensor, activation: str = "swiglu") -> Tensor:
    function, inner = ACTIVATIONS[activation], linear(weights, "up", x)
    if activation == "swiglu_clamped":
        inner = inner.clamp(-7, 7) + 1
    opened = function(linear(weights, "gate", x)) if "glu" in activation else None
    return linear(weights, "down", function(inner) if opened is None else opened * inner)
