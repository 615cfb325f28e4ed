"""Optimizers by their import path."""

import inspect
from typing import TYPE_CHECKING

import torch

from setpoint.config import SetpointError, call_component, parameters_of, takes_parameter
from setpoint.optim.given import Given, given_groups

if TYPE_CHECKING:
    from setpoint.optim.config import ImportedOptimizer


def build_imported(config: "ImportedOptimizer", parameters: Given) -> torch.optim.Optimizer:
    """Make the optimizer of an `import` section.

    Arguments:
        config: the resolved section; lr and weight_decay are handed over with its arguments.
        parameters: groups, as from `parameter_groups`, or (qualified name, parameter) pairs, all
            of which decay.

    Raises:
        SetpointError: nothing is trainable, or what the target makes is not an optimizer that the
            loop can use.
    """
    groups = given_groups(parameters)
    if not takes_parameter(parameters_of(config.target.load()), "weight_decay"):
        for group in groups:
            group.pop("weight_decay", None)
    optimizer = call_component(config, (groups,), {})
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise SetpointError(
            f"optimizer.target = {config.target} makes a {type(optimizer).__name__}; it must make "
            f"a torch.optim.Optimizer from groups of named parameters"
        )
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise SetpointError(
            f"optimizer.target = {config.target} computes the loss several times in one step "
            f"(its step needs a closure), which the loop does not do; choose an optimizer that "
            f"takes one gradient"
        )
    if all(callable(getattr(optimizer, mode, None)) for mode in ("train", "eval")):
        raise SetpointError(
            f"optimizer.target = {config.target} wants to be told when the model is trained and "
            f"when it is judged (by train() and eval()), which the loop does not do\nValid: "
            f"optimizer.type = schedule_free_adamw, which does it by itself"
        )
    return optimizer
