"""Which layers see all positions before them, and which a window."""

from __future__ import annotations

from typing import TYPE_CHECKING

from setpoint.model.attention.config import Kind

if TYPE_CHECKING:
    from setpoint.model.config import Transformer as TransformerConfig


def kind_of(config: TransformerConfig, layer: int) -> Kind:
    """Find what a layer attends to.

    Arguments:
        layer: the index of the layer in the whole model, from 0.
    """
    return config.attention_pattern[layer % len(config.attention_pattern)]


def kinds_of(config: TransformerConfig) -> list[Kind]:
    """Find the kinds that the layers of a model are of."""
    return list(dict.fromkeys(kind_of(config, layer) for layer in range(config.layers)))
