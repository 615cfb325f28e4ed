"""Modules that keep a weight of the module around them in another form than as one tensor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor, nn


@runtime_checkable
class Stored(Protocol):
    """A child module that keeps a weight of its parent, such as a quantized one."""

    stands_for: str
    """The name that the weight has in the parent."""

    whole: tuple[int, ...]
    """The shape of the weight, of all ranks together."""

    def put(self, full: Tensor) -> None:
        """Take the weight from its values, all of them; each rank keeps its part."""
        ...


def stored_weights(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Find the weights of a model that are kept so.

    Returns:
        the names that they would have, and the modules, which are `Stored`.
    """
    for path, module in model.named_modules():
        if isinstance(module, Stored):
            parent = path.rpartition(".")[0]
            yield f"{parent}.{module.stands_for}" if parent else module.stands_for, module


def stored_parts(model: nn.Module) -> dict[str, Tensor]:
    """The parameters that such weights are made of, which keep their dtypes, by name."""
    paths = [path for path, module in model.named_modules() if isinstance(module, Stored)]
    return {
        f"{path}.{name}": part
        for path in paths
        for name, part in model.get_submodule(path).named_parameters(recurse=False)
    }
