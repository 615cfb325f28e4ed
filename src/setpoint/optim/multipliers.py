"""Learning rates that differ between parameters, as a model itself asks for."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from torch import nn

from setpoint.config import SetpointError


@runtime_checkable
class OwnRates(Protocol):
    """A model whose parameters do not all learn at the rate of the schedule."""

    def learning_rate_multipliers(self) -> Mapping[str, float]:
        """Return what the rate of each parameter is multiplied by.

        Returns:
            factors by the name of the parameter; 1 for those left out.
        """
        ...


def multipliers_of(model: nn.Module) -> Mapping[str, float]:
    """Ask a model what the learning rates of its parameters are multiplied by.

    Arguments:
        model: any; most have nothing to say.

    Returns:
        factors by the name of the parameter; 1 for those left out.

    Raises:
        SetpointError: a multiplier for a parameter that is not there.
    """
    if not isinstance(model, OwnRates):
        return {}
    multipliers = model.learning_rate_multipliers()
    named = {name for name, _ in model.named_parameters()}
    if unknown := sorted(multipliers.keys() - named):
        raise SetpointError(
            f"learning_rate_multipliers() names parameters that are not there: {', '.join(unknown)}"
        )
    return multipliers
