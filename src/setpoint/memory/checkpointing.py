"""Activation checkpointing: which layers, or which parts of them, are recomputed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from torch import nn

from setpoint.config import SetpointError
from setpoint.memory.operators import contexts
from setpoint.memory.recompute import recompute

if TYPE_CHECKING:
    from setpoint.memory.config import CheckpointingConfig, Full, Operators, Parts

Layers = Sequence[tuple[str, nn.Module]]

NAMES = {
    "attention": ("attention", "self_attn", "attn", "self_attention"),
    "feed_forward": ("feed_forward", "mlp", "ffn", "block_sparse_moe"),
}
"""What the parts of a layer are called: by us first, then by models of other libraries."""


def full(config: Full, layers: Layers) -> None:
    """Compute whole layers again (Chen et al., 2016).

    Arguments:
        layers: of the model, by name, in order; changed in place.

    Raises:
        SetpointError: if there are none.
    """
    for _, layer in _chosen(config, layers):
        recompute(layer, reentrant=config.reentrant)


def parts(config: Parts, layers: Layers) -> None:
    """Compute the attention or the feed-forward network of layers again.

    Arguments:
        layers: of the model, by name, in order; changed in place.

    Raises:
        SetpointError: if there are none, or a layer has no part that is known to be one.
    """
    found = [
        _part(name, layer, wanted)
        for name, layer in _chosen(config, layers)
        for wanted in dict.fromkeys(config.parts)
    ]
    for module in found:  # all are there
        recompute(module, reentrant=config.reentrant)


def operators(config: Operators, layers: Layers) -> None:
    """Keep the results of some operators in layers, and compute all others again.

    Arguments:
        layers: of the model, by name, in order; changed in place.

    Raises:
        SetpointError: if there are none.
    """
    keep = partial(contexts, config.save, config.matmul_every)
    for _, layer in _chosen(config, layers):
        recompute(layer, keep=keep)


def _chosen(config: CheckpointingConfig, layers: Layers) -> Layers:
    if not layers:
        raise SetpointError(
            "memory.activation_checkpointing: the model has no layers that repeat, a list, a "
            "dictionary or a sequence of modules; set it to null"
        )
    return layers[:: config.every]


def _part(name: str, layer: nn.Module, wanted: str) -> nn.Module:
    for known in NAMES[wanted]:
        module = getattr(layer, known, None)
        if isinstance(module, nn.Module):
            return module
    there = ", ".join(key for key, _ in layer.named_children()) or "no modules at all"
    raise SetpointError(
        f"memory.activation_checkpointing.parts: {name}, a {type(layer).__name__}, has no "
        f"{wanted}, which would be called {' or '.join(NAMES[wanted])}; it has {there}\n"
        f"Valid: memory.activation_checkpointing.type = full, or operators"
    )
