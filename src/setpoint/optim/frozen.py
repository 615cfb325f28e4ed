"""Which parameters are frozen, from their names alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from setpoint.config import Problem
from setpoint.shapes.parameter import matches_nothing

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
            names = [each.name for each in parameters]
            yield matches_nothing(f"frozen.{index}", pattern, names, "parameters of the model")
    if config.frozen and all(is_frozen(config, each.name) for each in parameters):
        yield Problem(
            "frozen",
            f"matches all {len(parameters)} parameters of the model, so that nothing is trained",
            hint="Leave out those that are to be trained: '^(?!output)' freezes all but these.",
        )
        return
    trained = [each for each in parameters if not is_frozen(config, each.name)]
    for index, span in enumerate(config.frozen_spans):
        if not any(re.search(span.pattern, each.name) for each in trained):
            path = f"frozen_spans.{index}.pattern"
            names, of = [each.name for each in trained], "parameters that are trained otherwise"
            yield matches_nothing(path, span.pattern, names, of)
    for index, span in enumerate(config.frozen_spans):
        # Where this one begins, as far as others are counted in its unit.
        unit, at = span.start.unit, span.start.count
        now = [
            each
            for each in config.frozen_spans
            if (each.start.unit == unit or not each.start)
            and each.holds(lambda other, unit=unit, at=at: at if other == unit else 0)
        ]
        if all(any(re.search(each.pattern, p.name) for each in now) for p in trained):
            yield Problem(
                f"frozen_spans.{index}.start",
                f"leaves nothing that is trained at {span.start}",
                also=[
                    f"frozen_spans.{n}"
                    for n, e in enumerate(config.frozen_spans)
                    if e in now and n != index
                ],
                hint="Let spans overlap less, or match less.",
            )
            return
