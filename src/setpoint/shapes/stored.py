"""Quantized weights: modules that store a weight of the module around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

CHILD = "quantized"
"""Name of the child with such a weight, or with several by name."""


E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of a 4-bit float: one bit of sign, two of exponent, one of mantissa."""


class Form(NamedTuple):
    """Quantization format of a matrix.

    Arguments:
        numbers: `e4m3`, `e5m2`, `int8`, `int4`, `e2m1`, `nf4` or `fp4`.
        block: rows and columns with one scale; of `nf4` and `fp4`, of the flattened matrix.
        scales: `float`, `exponent` (of two) or `e4m3`, which a float of the matrix multiplies.
        nested: scales per scale of scales; 0: scales are not quantized.
        zeros: whether blocks have zero points.
    """

    numbers: str
    block: tuple[int, int]
    scales: str = "float"
    nested: int = 0
    zeros: bool = False


class Coded(NamedTuple):
    """A quantized matrix (outputs, inputs) of a file.

    Arguments:
        parts: codes (4 bits: two in a byte, the first in its low half, of `nf4` and `fp4` in its
            high half), scales, and their factor; of `nf4` and `fp4` levels, absmax, and where
            these are quantized nested_levels and nested_absmax.
        mean: of quantized scales.
    """

    form: Form
    parts: dict[str, Tensor]
    mean: float = 0.0


@runtime_checkable
class HasCoded(Protocol):
    """A model with weights from files that may hold them quantized."""

    def coded(self, weight: str) -> Iterator[Sequence[Coded]] | None:
        """Quantized matrices stacked in a weight, by its name; of packed experts, of each.

        None if files have it dense.
        """
        ...


@runtime_checkable
class Stored(Protocol):
    """A module that stores a weight of the module around it, such as a quantized one."""

    stands_for: str
    """Name of the weight in that module."""

    full_shape: tuple[int, ...]
    """Shape of the weight on all ranks together."""

    def pieces(self, every: bool = False) -> list[tuple[int, int]]:
        """Ranges of rows, each put at once; with `every`, those without a part here as well."""
        ...

    def parts_of(self, full: Tensor) -> dict[str, Tensor]:
        """Stored tensors of a piece by parameter, of all ranks."""
        ...

    def parts_from(self, coded: Coded) -> dict[str, Tensor] | None:
        """Stored tensors of a matrix of a file; None if its format is another."""
        ...

    def take(self, parts: dict[str, Tensor], first: int = 0) -> None:
        """Take the stored tensors of a piece; see `put`."""

    def put(self, full: Tensor, first: int = 0) -> None:
        """Take a piece of the weight from row `first` on; each rank keeps its part."""


@runtime_checkable
class StoredExperts(Stored, Protocol):
    """Matrices (E, in, out) of packed experts.

    The experts' child `CHILD` is None, or a `nn.ModuleDict` by the names of tensors that are None.
    """

    @property
    def computed(self) -> tuple[int, int, int]:
        """Shape of all experts' matrices; ranks may divide the width."""
        ...

    def multiply(
        self, rows: Tensor, product: Callable[[Tensor, Tensor, Tensor], Tensor], ends: Tensor
    ) -> Tensor:
        """Multiply rows with the matrices of their local experts.

        Arguments:
            product: of rows, dense matrices and ends.
            ends: ends of the rows of each expert.
        """
        ...

    def dense(self, dtype: torch.dtype = ...) -> Tensor:
        """Dequantized matrices of the local experts."""
        ...


def stored_weights(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Find the `Stored` modules of a model, by the names of their weights."""
    for path, module in model.named_modules():
        if isinstance(module, Stored):
            yield f"{path.rpartition(CHILD)[0]}{module.stands_for}", module


class QuantizedPart(NamedTuple):
    """One stored parameter of a weight.

    Arguments:
        weight: name of the weight.
        module: the `Stored` module.
        param: name of the parameter in it.
        shape: on all ranks together.
    """

    weight: str
    module: Any
    param: str
    shape: tuple[int, ...]


def places_of_parts(model: nn.Module) -> dict[str, QuantizedPart]:
    """Stored parameters by the names that `stored_parts` gives them."""
    paths = {id(module): path for path, module in model.named_modules()}
    return {
        f"{paths[id(module)]}.{name}": QuantizedPart(weight, module, name, tuple(part.shape))
        for weight, module in stored_weights(model)
        for name, part in module.named_parameters(recurse=False)
    }


def stored_parts(model: nn.Module) -> dict[str, Tensor]:
    """Tensors of stored weights, which keep their dtypes, by name."""
    paths = [path for path, module in model.named_modules() if isinstance(module, Stored)]
    return {
        f"{path}.{name}": part
        for path in paths
        for name, part in model.get_submodule(path).named_parameters(recurse=False)
    }
