"""Which parameters are frozen, from their names alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from setpoint.config import Problem
from setpoint.optim.grouping import matches_nothing

if TYPE_CHECKING:
    from setpoint.optim.section import OptimizerConfig
    from setpoint.shapes.parameter import Parameter


def is_frozen(config: OptimizerConfig, name: str) -> bool:
    """Whether a pattern of `optimizer.frozen` is found in a name."""
    return any(re.search(pattern, name) for pattern in config.frozen)


def frozen_problems(config: OptimizerConfig, parameters: Sequence[Parameter]) -> Iterator[Problem]:
    """Find patterns that freeze nothing, or everything.

    Arguments:
        parameters: all that the model would train without patterns.

    Returns:
        problems with paths relative to the section.
    """
    for index, pattern in enumerate(config.frozen):
        if not any(re.search(pattern, each.name) for each in parameters):
            yield matches_nothing(f"frozen.{index}", pattern, parameters, " of the model")
    if config.frozen and all(is_frozen(config, each.name) for each in parameters):
        yield Problem(
            "frozen",
            f"matches all {len(parameters)} parameters of the model, so that nothing is trained",
            hint="Leave out those that are to be trained: '^(?!output)' freezes all but these.",
        )
