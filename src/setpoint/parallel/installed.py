"""What the installed packages lack for several ranks."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from setpoint.config import Problem
from setpoint.parallel.pipelining import SCHEDULES

if TYPE_CHECKING:
    from setpoint.parallel.config import Parallel
    from setpoint.parallel.pipelining import Pipelining

SPLITS_BACKWARD = (2, 13)
"""The torch whose backward passes in two parts take tied weights and compiled blocks."""


def schedule_problems(config: Pipelining) -> Iterator[Problem]:
    """Find that this torch fails at backward passes in two parts."""
    installed = version("torch")
    if tuple(int(part) for part in installed.split(".")[:2]) < SPLITS_BACKWARD:
        yield Problem(
            "schedule",
            f"needs torch {'.'.join(map(str, SPLITS_BACKWARD))} or later for backward passes in "
            f"two parts; this is {installed}",
            valid=tuple(name for name, known in SCHEDULES.items() if not known.splits_backward),
        )


def engine_problems(config: Parallel) -> Iterator[Problem]:
    """Find that the engine is not installed."""
    if config.uses_deepspeed and find_spec("deepspeed") is None:
        yield Problem(
            "engine",
            "the package deepspeed is not installed (pip install 'setpoint[deepspeed]')",
            valid=("torch",),
        )
