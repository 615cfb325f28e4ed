"""Quantized weights: modules that store a weight of their parent module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from setpoint.shapes.parameter import Form

CHILD = "quantized"
"""Name of the child with such a weight, or with several by name."""


E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of a 4-bit float: one bit of sign, two of exponent, one of mantissa."""


class Coded(NamedTuple):
    """A quantized matrix (outputs, inputs) read from a file.

    Arguments:
        parts: codes (4 bits: two in a byte, the first in its low half, of `nf4` and `fp4` in its
            high half), scales, and their factor; of `nf4` and `fp4` levels, absmax, and where
            these are quantized nested_levels and nested_absmax.
        mean: mean of the quantized scales.
    """

    form: Form
    parts: dict[str, Tensor]
    mean: float = 0.0


@runtime_checkable
class HasCoded(Protocol):
    """Model with weights from files that may store them quantized."""

    def coded(self, weight: str) -> Iterator[Sequence[Coded]] | None:
        """The quantized matrices stacked in a weight, by weight name; for packed experts, of each.

        None if the files store the weight unquantized.
        """
        ...


@runtime_checkable
class Stored(Protocol):
    """Module that stores a weight of its parent in another form, such as quantized."""

    stands_for: str
    """Name of the weight in that module."""

    full_shape: tuple[int, ...]
    """Shape of the weight on all ranks together."""

    def pieces(self, every: bool = False) -> list[tuple[int, int]]:
        """Row ranges that are set in one call; with `every`, also those absent on this rank."""
        ...

    def parts_of(self, full: Tensor) -> dict[str, Tensor]:
        """The stored tensors of a piece, by parameter, over all ranks."""
        ...

    def parts_from(self, coded: Coded) -> dict[str, Tensor] | None:
        """Stored tensors for a matrix from a file; None if its format differs."""
        ...

    def take(self, parts: dict[str, Tensor], first: int = 0) -> None:
        """Accept the stored tensors of a piece; see `put`."""

    def put(self, full: Tensor, first: int = 0) -> None:
        """Set a piece of the weight that starts at row `first`; each rank keeps its part."""


@runtime_checkable
class StoredExperts(Stored, Protocol):
    """Packed expert matrices (E, in, out).

    The child `CHILD` of the experts is None, or an `nn.ModuleDict` with an entry for each tensor
    that is None.
    """

    @property
    def computed(self) -> tuple[int, int, int]:
        """Shape of the matrices of all experts; ranks may divide the width."""
        ...

    def multiply(
        self, rows: Tensor, product: Callable[[Tensor, Tensor, Tensor], Tensor], ends: Tensor
    ) -> Tensor:
        """Multiply rows by the matrices of their local experts.

        Arguments:
            product: computes the product from rows, dense matrices and ends.
            ends: ends of the rows of each expert.
        """
        ...

    def dense(self, dtype: torch.dtype = ...) -> Tensor:
        """The dequantized matrices of the local experts."""
        ...


def stored_weights(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Find the `Stored` modules of a model, by weight name."""
    for path, module in model.named_modules():
        if isinstance(module, Stored):
            yield f"{path.rpartition(CHILD)[0]}{module.stands_for}", module


class QuantizedPart(NamedTuple):
    """One stored parameter that is part of a weight.

    Arguments:
        weight: name of the weight.
        module: the `Stored` module.
        param: name of the parameter within the module.
        shape: shape over all ranks.
    """

    weight: str
    module: Any
    param: str
    shape: tuple[int, ...]


def places_of_parts(model: nn.Module) -> dict[str, QuantizedPart]:
    """Stored parameters, under the names that `stored_parts` uses."""
    paths = {id(module): path for path, module in model.named_modules()}
    return {
        f"{paths[id(module)]}.{name}": QuantizedPart(weight, module, name, tuple(part.shape))
        for weight, module in stored_weights(model)
        for name, part in module.named_parameters(recurse=False)
    }


def stored_parts(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of stored weights by name; they keep their dtypes."""
    paths = [path for path, module in model.named_modules() if isinstance(module, Stored)]
    return {
        f"{path}.{name}": part
        for path in paths
        for name, part in model.get_submodule(path).named_parameters(recurse=False)
    }
