"""How large parameters start, how fast they learn, and what muP makes of both.

muP (Tensor Programs V, Yang et al., 2022, table 8, for Adam): let m = dim / base_dim. What maps
width to width (hidden) starts with std / sqrt(m) and learns at lr / m; what maps a fixed size to
width (embeddings, biases, norms) stays as it is; the output matrix stays as it is and logits are
divided by m. A model of width base_dim is then the model without muP, bit for bit.
"""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig


def width_ratio(config: "TransformerConfig") -> float:
    """Return base_dim / dim under muP.

    Returns:
        The ratio; 1 without muP.
    """
    return 1.0 if config.mup is None else config.mup.base_dim / config.dim


def hidden_std(config: "TransformerConfig") -> float:
    """Return what matrices from width to width start with."""
    return config.init_std * math.sqrt(width_ratio(config))


def residual_std(config: "TransformerConfig") -> float:
    """Return what matrices that write to the residual stream start with.

    With depth_scaled the sum of 2 * layers such outputs keeps its size whatever the depth (GPT-2,
    Radford et al., 2019).
    """
    plain = config.residual_init == "plain"
    return hidden_std(config) / (1.0 if plain else math.sqrt(2 * config.layers))


def router_std(config: "TransformerConfig") -> float:
    """Return what matrices from width to a fixed number of scores start with.

    They learn at the rate of hidden matrices, so that under muP it is 1 / m here, not 1 / sqrt(m)
    (table 3 of the paper, the same thing as an output matrix whose result is divided by m).
    """
    return config.init_std * width_ratio(config)


def rate_multiplier(config: "TransformerConfig", name: str, dims: int) -> float:
    """Return what muP multiplies the learning rate of a parameter by.

    Returns:
        The ratio for what maps width to width: the matrices of the layers, packed experts among
        them; 1 for all others, such as adapters, and without muP.
    """
    hidden = name.startswith("layers.") and dims >= 2 and ".adapter." not in name
    return width_ratio(config) if hidden else 1.0
