"""Modules that keep a weight of the module around them in another form than as one tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

CHILD = "quantized"
"""The name of the child with such a weight, or with several by their names."""


class Form(NamedTuple):
    """The quantization of a matrix.

    Arguments:
        numbers: `e4m3`, `e5m2`, `int8`, `int4`, `e2m1`, `nf4` or `fp4`.
        block: rows and columns with one scale; of `nf4` and `fp4`, of the flattened matrix.
        scales: `float`, `exponent` (of two) or `e4m3`, which a float of the matrix multiplies.
        nested: how many scales have one scale themselves; 0: they have none.
        zeros: whether blocks have zero points.
    """

    numbers: str
    block: tuple[int, int]
    scales: str = "float"
    nested: int = 0
    zeros: bool = False


class Coded(NamedTuple):
    """A matrix (outputs, inputs) that a file holds quantized.

    Arguments:
        parts: codes (4 bits: two in a byte, the first in its low half, of `nf4` and `fp4` in its
            high half), scales, and the factor that multiplies these; of `nf4` and `fp4` levels,
            absmax, and where these are places themselves nested_levels and nested_absmax.
        mean: of scales that are quantized themselves.
    """

    form: Form
    parts: dict[str, Tensor]
    mean: float = 0.0


@runtime_checkable
class HasCoded(Protocol):
    """A model whose weights have come from files that may hold them quantized."""

    def coded(self, weight: str) -> Iterator[Sequence[Coded]] | None:
        """The matrices that a weight is made of, one above the other; of packed experts, of each.

        Arguments:
            weight: its name in the model.

        Returns:
            None where files hold it dense.
        """
        ...


@runtime_checkable
class Stored(Protocol):
    """A module that keeps a weight of the module above it, such as a quantized one."""

    stands_for: str
    """The name that the weight has in that module."""

    whole: tuple[int, ...]
    """The shape of the weight, of all ranks together."""

    def pieces(self, every: bool = False) -> list[tuple[int, int]]:
        """The rows that are put one after the other, each from the first to before the last.

        Arguments:
            every: also those that this rank keeps nothing of.
        """
        ...

    def parts_of(self, full: Tensor) -> dict[str, Tensor]:
        """The tensors that a piece is kept as, by parameter, wherever ranks would have it."""
        ...

    def parts_from(self, coded: Coded) -> dict[str, Tensor] | None:
        """The same of one matrix that a file holds in the same format; None if it is another."""
        ...

    def take(self, parts: dict[str, Tensor], first: int = 0) -> None:
        """Take what a piece is kept as; see `put`."""
        ...

    def put(self, full: Tensor, first: int = 0) -> None:
        """Take a piece of the weight, or all of it; each rank keeps its part.

        Arguments:
            first: row of the weight that the piece begins with.
        """
        ...


@runtime_checkable
class StoredExperts(Stored, Protocol):
    """The matrices (E, in, out) of packed experts, which have a child by the name of `CHILD`.

    That is None, or a `nn.ModuleDict` by the names of the tensors, which are None then.
    """

    @property
    def computed(self) -> tuple[int, int, int]:
        """The shape of the matrices of all experts, of whose width ranks may have parts."""
        ...

    def multiply(
        self, rows: Tensor, product: Callable[[Tensor, Tensor, Tensor], Tensor], ends: Tensor
    ) -> Tensor:
        """Multiply rows with the matrices of their experts, of those that this rank has.

        Arguments:
            product: of rows and dense matrices.
            ends: where the rows of each expert end.
        """
        ...

    def dense(self, dtype: torch.dtype = ...) -> Tensor:
        """The matrices, of the experts that this rank has."""
        ...


def stored_weights(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Find the weights of a model that are kept so.

    Returns:
        the names that they would have, and the modules, which are `Stored`.
    """
    for path, module in model.named_modules():
        if isinstance(module, Stored):
            yield f"{path.rpartition(CHILD)[0]}{module.stands_for}", module


class QuantizedPart(NamedTuple):
    """One of the parameters that such a weight is kept as.

    Arguments:
        weight: the name of the weight.
        by: which keeps it, a `Stored`.
        own: the name of the parameter in that.
        shape: of all ranks together.
    """

    weight: str
    by: Any
    own: str
    shape: tuple[int, ...]


def places_of_parts(model: nn.Module) -> dict[str, QuantizedPart]:
    """The same by the names that `stored_parts` gives them."""
    paths = {id(module): path for path, module in model.named_modules()}
    return {
        f"{paths[id(module)]}.{name}": QuantizedPart(weight, module, name, tuple(part.shape))
        for weight, module in stored_weights(model)
        for name, part in module.named_parameters(recurse=False)
    }


def stored_parts(model: nn.Module) -> dict[str, Tensor]:
    """The parameters that such weights are made of, which keep their dtypes, by name."""
    paths = [path for path, module in model.named_modules() if isinstance(module, Stored)]
    return {
        f"{path}.{name}": part
        for path in paths
        for name, part in model.get_submodule(path).named_parameters(recurse=False)
    }
