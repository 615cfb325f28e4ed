"""What a model says of its experts, so that ranks can divide them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import nn


class ExpertPart(NamedTuple):
    """The experts of one layer.

    Arguments:
        module: it is called with tokens, and owns parameters whose first dimension is the expert.
        widths: by the name of each projection, the dimension of the inner width of an expert.
            Parameters that follow its division lie in modules of that name.
    """

    module: nn.Module
    widths: Mapping[str, int]


def side_to_shard(shape: Sequence[int], inner: int, ranks: int) -> int:
    """Choose the dimension along which ranks shard a tensor of experts.

    It is that of the experts where that comes out even, so that each rank has whole ones, which
    Muon needs; else one that does, rather not the inner width, and the experts if none does.

    Arguments:
        shape: what these ranks have together.
        inner: the dimension of the inner width; 0: it has none.
    """
    sides = sorted(range(len(shape)), key=lambda dim: dim > 0 and dim == inner)
    return next((dim for dim in sides if shape[dim] % ranks == 0), 0)


@runtime_checkable
class HasExperts(Protocol):
    """A model whose experts can lie on several ranks."""

    def use_experts(self, exchange: Any) -> Sequence[ExpertPart]:
        """Take tokens to experts by an exchange from now on; see `setpoint.model.moe.dispatch`.

        Returns:
            the experts of each layer, in the order of the layers; their parameters become DTensors,
            of which each rank computes with its own part.

        Raises:
            SetpointError: the experts cannot be divided.
        """
        ...
