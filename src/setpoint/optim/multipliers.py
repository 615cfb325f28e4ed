"""Learning rates that differ between parameters."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch

from setpoint.config import SetpointError
from setpoint.optim.groups import Named


@runtime_checkable
class OwnRates(Protocol):
    """A model whose parameters do not all learn at the rate of the schedule."""

    def learning_rate_multipliers(self) -> Mapping[str, float]:
        """Return what the rate of each parameter is multiplied by.

        Returns:
            factors by the name of the parameter; 1 for those left out.
        """
        ...


def apply_multipliers(
    optimizer: torch.optim.Optimizer,
    parameters: Iterable[Named],
    multipliers: Mapping[str, float],
) -> None:
    """Split the groups of an optimizer so that all parameters of a group learn at one rate.

    Each group gets a `lr_multiplier`, which the loop multiplies its learning rate by. It works for
    any optimizer of PyTorch's form. Where all multipliers are 1, nothing is changed, so that the
    state in older checkpoints fits.

    Arguments:
        optimizer: at its start.
        parameters: (qualified name, parameter) pairs, as from `module.named_parameters()`.
        multipliers: by the name of the parameter; 1 for those left out.

    Raises:
        SetpointError: a multiplier for a parameter that is not there.
    """
    if all(factor == 1.0 for factor in multipliers.values()):
        return
    named = dict(parameters)
    if unknown := sorted(multipliers.keys() - named.keys()):
        raise SetpointError(
            f"learning_rate_multipliers() names parameters that are not there: {', '.join(unknown)}"
        )
    factors = {id(parameter): multipliers.get(name, 1.0) for name, parameter in named.items()}
    groups = [part for group in optimizer.param_groups for part in _split(group, factors)]
    optimizer.param_groups[:] = groups


def _split(group: dict[str, Any], factors: Mapping[int, float]) -> list[dict[str, Any]]:
    """One group for each multiplier among the parameters, in the order of their first ones."""
    held = [factors.get(id(parameter), 1.0) for parameter in group["params"]]
    parts: list[dict[str, Any]] = []
    for factor in dict.fromkeys(held):
        part = {**group, "lr_multiplier": factor}
        for key in ("params", "param_names"):
            if key in group:
                part[key] = [
                    one for one, its in zip(group[key], held, strict=True) if its == factor
                ]
        if "name" in group and factor != 1.0:
            part["name"] = f"{group['name']} x {factor:g}"
        parts.append(part)
    return parts
