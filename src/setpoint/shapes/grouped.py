"""Modules that multiply groups of rows, each with a matrix of its own, by products to be chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor


class GroupedProducts(NamedTuple):
    """Products of rows with the matrices of their groups, whose ends are int32 (E,).

    Arguments:
        product: of (R, in) rows, (E, in, out) matrices and ends, (R, out); with gradients.
        gradient: of the matrices: of rows, the gradient of the product, and ends.
    """

    product: Callable[[Tensor, Tensor, Tensor], Tensor]
    gradient: Callable[[Tensor, Tensor, Tensor], Tensor]


@runtime_checkable
class HasGroupedProducts(Protocol):
    """A module that takes other products than those that it chooses itself."""

    grouped: GroupedProducts | None

    def size_here(self) -> tuple[int, int]:
        """(width, dim): the sides of the matrices that this rank multiplies with."""
        ...
