"""Which layers can share compiled code."""

from __future__ import annotations

from collections.abc import Hashable

from torch import nn

# How models call a layer's own number: it differs in each, and few read it.
NUMBERS = frozenset({"layer_idx", "layer_index", "layer_id", "layer_number", "layer", "index"})


def signature_of(layer: nn.Module) -> Hashable:
    """Describe a layer by what compiled code is specialized on.

    Layers that differ here would each compile code of their own under one name, and would use up
    the recompilation limit of that name together.

    Returns:
        the classes of its modules, their plain settings, and the shapes of their parameters; equal
        for layers of one kind.
    """
    return tuple(
        # A forward pass of its own is what activation checkpointing gives a layer.
        (name, type(module), "forward" in vars(module), _settings(module), _shapes(module))
        for name, module in layer.named_modules()
    )


def _settings(module: nn.Module) -> Hashable:
    return tuple(
        (name, value)
        for name, value in sorted(vars(module).items())
        if name not in NUMBERS and isinstance(value, bool | int | float | str | None)
    )


def _shapes(module: nn.Module) -> Hashable:
    return tuple(
        (name, tuple(parameter.shape), parameter.requires_grad)
        for name, parameter in module.named_parameters(recurse=False)
    )
