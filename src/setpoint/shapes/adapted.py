"""What modules with an adapter, and those beside them, know of each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor, nn

    from setpoint.shapes.parameter import Kind
    from setpoint.shapes.peers import Peers


@runtime_checkable
class Adapted(Protocol):
    """A module whose weight an adapter changes."""

    def adapted_weight(self) -> Tensor:
        """The weight with the update of the adapter, through which gradients reach that."""
        ...


def weight_in_use(module: nn.Module) -> Tensor:
    """The weight of a module as it computes, for those who do not call the module itself."""
    if isinstance(module, Adapted):
        return module.adapted_weight()
    weight: Any = module.weight
    return weight


@runtime_checkable
class KnowsKinds(Protocol):
    """A module that says what its own parameters are for."""

    def parameter_kinds(self) -> Mapping[str, Kind]:
        """Kinds by the names of its parameters."""
        ...


@runtime_checkable
class FollowsDivision(Protocol):
    """A module within another one, whose parameters are divided as those of that one."""

    def follow(
        self, word: str, rows: Sequence[tuple[int, int]], peers: Peers
    ) -> tuple[dict[str, int], tuple[str, ...]]:
        """Learn how tensor parallelism divides the module around it.

        Arguments:
            word: of that module; see `setpoint.shapes.division`.
            rows: of a whole matrix that this rank computes with, (first, number) each; none where
                it has an equal share of them, or all.

        Returns:
            the dimension along which each divided parameter is divided; and the parameters of
            which it computes with the given rows.
        """
        ...
