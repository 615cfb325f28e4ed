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
        widths: by the name of each parameter, the dimension of the inner width of an expert.
    """

    module: nn.Module
    widths: Mapping[str, int]


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
