"""Checks of `[profiling]` against the ranks and the device of a job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Problem
from setpoint.profile.config import SNAPSHOT_ON_CPU

if TYPE_CHECKING:
    from setpoint.parallel.config import Ranks
    from setpoint.profile.config import Profiling


def rank_problems(section: Profiling, parallel: Ranks) -> Iterator[Problem]:
    """Look for ranks that are not there."""
    size = parallel.world_size
    for index, rank in enumerate(section.ranks or ()):
        if rank >= size:
            yield Problem(
                f"profiling.ranks.{index}",
                f"there is no rank {rank} among {size}",
                valid=("0",) if size == 1 else (f"0 to {size - 1}",),
                also=("parallel.world_size",),
            )


def snapshot_problem(device: str) -> Problem:
    """The finding that there is no GPU whose memory a snapshot could be of.

    Arguments:
        device: why there is none: "the device is cpu".
    """
    return Problem(
        "profiling.snapshot",
        SNAPSHOT_ON_CPU.format(device=device),
        valid=("false",),
        also=("parallel.device",),
    )
