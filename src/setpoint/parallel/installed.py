"""Whether the package of the engine is there."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from setpoint.config import Problem
from setpoint.parallel.config import Parallel


def engine_problems(config: Parallel) -> Iterator[Problem]:
    """Find that the engine is not installed."""
    if config.uses_deepspeed and find_spec("deepspeed") is None:
        yield Problem(
            "engine",
            "the package deepspeed is not installed (pip install 'setpoint[deepspeed]')",
            valid=("torch",),
        )
