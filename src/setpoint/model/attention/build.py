"""The attention of a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from setpoint.model.attention.attention import Attention
from setpoint.model.attention.latent import LatentAttention

if TYPE_CHECKING:
    from setpoint.model.config import Transformer as TransformerConfig


def build_attention(config: TransformerConfig, layer: int) -> Attention | LatentAttention:
    """Make the attention of a layer.

    Arguments:
        layer: the index of the layer in the whole model, from 0.

    Returns:
        a module that maps (B, S, dim) and an `AttentionContext` to (B, S, dim).
    """
    return Attention(config, layer) if config.mla is None else LatentAttention(config, layer)
