"""Parameter groups as PyTorch's optimizers take them, with the rates that a model asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from torch import nn

from setpoint.config import SetpointError
from setpoint.optim.grouping import Gathered, gather
from setpoint.optim.section import OptimizerConfig
from setpoint.shapes.parameter import Parameter

Groups = list[dict[str, Any]]


def parameter_groups(config: OptimizerConfig, parameters: Iterable[Parameter]) -> Groups:
    """Put parameters into the groups that the section describes; see `gather` for the rules.

    Arguments:
        parameters: with their tensors, in the order of the model; frozen ones are left out.

    Returns:
        groups for a torch optimizer. Each has `name`, `params` as pairs of name and tensor (torch
        keeps the names as `param_names`) and `weight_decay`; `lr_multiplier` where it is not 1,
        which the loop multiplies the learning rate by; and what `config.treatment` and the options
        of its group set, by the names of the section's fields.

    Raises:
        SetpointError: nothing is trainable, a pattern matches nothing, or an option is wrong.
    """
    trained = [each for each in parameters if each.tensor is not None and each.tensor.requires_grad]
    return [_as_torch_has_it(group) for group in gather(config, trained)]


def _as_torch_has_it(group: Gathered) -> dict[str, Any]:
    rate = {} if group.lr_multiplier == 1.0 else {"lr_multiplier": group.lr_multiplier}
    return {
        "name": group.name,
        "params": [(each.name, each.tensor) for each in group.parameters],
        "weight_decay": group.weight_decay,
        **rate,
        **group.options,
    }


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
