"""Construction of built-in and custom optimizers over parameter groups."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from setpoint.config import SetpointError, call_component, error_in_words
from setpoint.config.component_sections import parameters_of, takes_parameter
from setpoint.config.draft.config import owner_of
from setpoint.optim.config import ImportedOptimizer, OptimizerConfig
from setpoint.optim.grouping import Groups
from setpoint.optim.optimizer import Given, given_groups


def build_optimizer(
    config: OptimizerConfig,
    groups: Groups,
    state_dtype: torch.dtype | None = None,
    seed: int = 0,
) -> torch.optim.Optimizer:
    """Build the optimizer of a section.

    Arguments:
        groups: from `parameter_groups`.
        state_dtype: dtype of optimizer state, if supported; None: that of each parameter.
        seed: of its random numbers, if it draws any; the same on all ranks.

    Raises:
        SetpointError: a custom optimizer cannot be built, or is not an optimizer.
    """
    given: dict[str, Any] = {"state_dtype": state_dtype} if config.state_formats else {}
    if config.draws:
        given["seed"] = seed
    title = _title(config)
    if title is None:
        return config.build(parameters=groups, **given)
    try:
        optimizer: object = config.build(parameters=groups, **given)
    except SetpointError:
        raise
    except Exception as error:
        raise SetpointError(
            f"{title} cannot be built over groups of parameters, as PyTorch has them: "
            f"{error_in_words(error)}"
        ) from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise SetpointError(
            f"{title} is a {type(optimizer).__name__}; it must be a torch.optim.Optimizer"
        )
    return optimizer


def title_of(config: OptimizerConfig) -> str | None:
    """Name of a custom optimizer in errors; None for built-in ones."""
    if isinstance(config, ImportedOptimizer):
        return f"optimizer.target = {config.target}"
    return _title(config)


def _title(config: OptimizerConfig) -> str | None:
    owner = owner_of(type(config))
    if owner.__module__.partition(".")[0] == "setpoint":
        return None
    tag = type(config).__setpoint__.tag
    return f"optimizer.type = {tag} ({owner.__module__}.{owner.__qualname__})"


def build_imported(config: ImportedOptimizer, parameters: Given) -> torch.optim.Optimizer:
    """Build the optimizer of an `import` section.

    Arguments:
        config: the resolved section; lr and weight_decay are passed with its arguments.
        parameters: groups, as from `parameter_groups`, or (qualified name, parameter) pairs, which
            all decay.

    Raises:
        SetpointError: nothing is trainable, or the loop does not support the target's optimizer.
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
            f"optimizer.target = {config.target} computes the loss several times per step (its "
            f"step needs a closure), which the loop does not support"
        )
    if all(callable(getattr(optimizer, mode, None)) for mode in ("train", "eval")):
        raise SetpointError(
            f"optimizer.target = {config.target} needs calls of its train() and eval() "
            f"around evaluation, which the loop does not make\nValid: optimizer.type = "
            f"schedule_free_adamw, which does this itself"
        )
    return optimizer
