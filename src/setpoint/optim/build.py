"""Building an optimizer, whoever wrote it, over the groups of a model's parameters."""

from __future__ import annotations

from typing import Any

import torch

from setpoint.config import SetpointError, error_in_words, owner_of
from setpoint.optim.config import ImportedOptimizer
from setpoint.optim.groups import Groups
from setpoint.optim.section import OptimizerConfig


def build_optimizer(
    config: OptimizerConfig,
    groups: Groups,
    state_dtype: torch.dtype | None = None,
    seed: int = 0,
) -> torch.optim.Optimizer:
    """Build the optimizer of a section.

    Arguments:
        groups: from `parameter_groups`.
        state_dtype: what it keeps its state in, where it can; None: that of each parameter.
        seed: of the random numbers that it draws, if it does; the same on all ranks.

    Raises:
        SetpointError: a user's own cannot be built, or is no optimizer.
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
    """What an optimizer that Setpoint has not written is called in errors."""
    if isinstance(config, ImportedOptimizer):
        return f"optimizer.target = {config.target}"
    return _title(config)


def _title(config: OptimizerConfig) -> str | None:
    owner = owner_of(type(config))
    if owner.__module__.partition(".")[0] == "setpoint":
        return None
    tag = type(config).__setpoint__.tag
    return f"optimizer.type = {tag} ({owner.__module__}.{owner.__qualname__})"
