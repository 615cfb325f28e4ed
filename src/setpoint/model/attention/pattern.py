"""Which layers see all positions before them, and which a window."""

from __future__ import annotations

from typing import TYPE_CHECKING

from setpoint.model.attention.config import Kind

if TYPE_CHECKING:
    from setpoint.model.config import Transformer as TransformerConfig


def kind_of(config: TransformerConfig, layer: int) -> Kind:
    """Find what a layer attends to.

    Arguments:
        config: gives the pattern, which is repeated over the layers.
        layer: the index of the layer in the whole model, from 0.

    Returns:
        its kind.
    """
    return config.attention_pattern[layer % len(config.attention_pattern)]


def kinds_of(config: TransformerConfig) -> list[Kind]:
    """Find the kinds that the layers of a model are of.

    Arguments:
        config: gives the pattern and the number of layers.

    Returns:
        each kind once, in the order of the layers.
    """
    return list(dict.fromkeys(kind_of(config, layer) for layer in range(config.layers)))
