"""What is asked of any model: its layers, its parameters, and its mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


def layers_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Find the blocks that a model repeats, such as the layers of a transformer.

    They are the members of that list or dictionary of modules which holds the most parameters, as
    the list of layers does: experts and heads are lists within a layer. A sequence counts where
    its members are of one class. A dictionary that holds a list of layers among other things is
    passed over for the list, and so is a list of embeddings.

    Returns:
        the qualified name and the module of each, in the order of the model; a module that takes
        several places is there once. Empty where nothing repeats.
    """
    best, most = [], 0
    for prefix, holder in model.named_modules():
        layers = _members(prefix, holder)
        # The first wins: what lies within it cannot hold more.
        size = sum(p.numel() for p in holder.parameters()) if layers else 0
        if size > most:
            best, most = layers, size
    return best


def _members(prefix: str, holder: nn.Module) -> list[tuple[str, nn.Module]]:
    """The named members of a holder of layers; empty for other modules."""
    members = list(holder.named_children())
    if not members or any(_is_no_layer(module) for _, module in members):
        return []
    if isinstance(holder, nn.Sequential):
        if len(members) < 2 or len({type(module) for _, module in members}) > 1:
            return []
    elif not isinstance(holder, nn.ModuleList | nn.ModuleDict):
        return []
    return [(f"{prefix}.{name}" if prefix else name, module) for name, module in members]


def _is_no_layer(module: nn.Module) -> bool:
    if isinstance(module, nn.Embedding):
        return True
    # A list cannot be called; a subclass with a forward pass of its own can.
    is_list = isinstance(module, nn.ModuleList | nn.ModuleDict)
    return is_list and type(module).forward is nn.Module.forward


def count_parameters(module: nn.Module) -> int:
    """Count the elements of all parameters, each shared parameter once.

    Arguments:
        module: any module; sharded parameters count whole.
    """
    return sum(parameter.numel() for parameter in module.parameters())


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and each of its modules back into the mode it was in."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training
