"""Weights that ranks shard: their dtypes, and those that autocast casts to the compute dtype."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import nn

from setpoint.shapes.adapted import Adapted
from setpoint.shapes.outcome import supports_head


class ShardDtypes(NamedTuple):
    """Dtypes of a weight that FSDP2 shards.

    Arguments:
        gathered: in which it is gathered, and the model computes with it.
        grad: of its whole gradient, in which micro-batches and several uses in one are added up.
        shard_grad: of the gradient of the shard.
    """

    gathered: torch.dtype
    grad: torch.dtype
    shard_grad: torch.dtype


class ShardedWeight(NamedTuple):
    """A weight that FSDP2 shards.

    Arguments:
        modules: those that have it, with the name that it has in each.
        shard: this rank's part.
    """

    modules: list[tuple[nn.Module, str]]
    shard: nn.Parameter


@runtime_checkable
class HasProducts(Protocol):
    """A module that says which of its own parameters are read by matrix products alone."""

    def product_weights(self) -> Collection[str]:
        """Names of these parameters."""
        ...


def product_weights(model: nn.Module) -> set[tuple[nn.Module, str]]:
    """Find the parameters that are read by matrix products alone.

    Those of linear layers, and of modules that say so. A model that autocast does not compute in
    (`torch.autocast(enabled=False)`) reads the weights of its linear layers otherwise.

    Returns:
        modules, and names of their own parameters.
    """
    found: set[tuple[nn.Module, str]] = set()
    for module in model.modules():
        if isinstance(module, HasProducts):
            found |= {(module, name) for name in module.product_weights()}
        elif isinstance(module, nn.Linear):
            found |= {(module, name) for name in ("weight", "bias")}
    # The loss adds an adapter's update to the output matrix before it multiplies.
    heads = [module for module in model.modules() if supports_head(module)]
    adapted = [each for each in (getattr(m, "output", None) for m in heads) if _is_adapted(each)]
    return {(module, name) for module, name in found if module not in adapted}


def _is_adapted(module: object) -> bool:
    return isinstance(module, nn.Module) and isinstance(module, Adapted)
