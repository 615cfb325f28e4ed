"""What products of queries and keys are multiplied by."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from setpoint.model.config import Transformer as TransformerConfig


def attention_scale(config: TransformerConfig) -> float | None:
    """Find the scale of attention, where it is not the usual one.

    Under muP products of queries and keys, which are correlated after training, are scaled by
    sqrt(base_head_dim) / head_dim (Yang et al., 2022).

    Returns:
        the factor; None for 1 / sqrt(size of queries and keys).
    """
    if config.attention_scale is not None:
        return config.attention_scale
    if config.mup is not None and config.mup.base_head_dim is not None:
        return math.sqrt(config.mup.base_head_dim) / query_size(config)
    return None


def query_size(config: TransformerConfig) -> int:
    """Count the components of one head of queries and keys."""
    if config.mla is not None:
        return config.mla.nope_head_dim + config.mla.rope_head_dim
    return config.head_dim
