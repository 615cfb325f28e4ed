"""What a profile needs of the machine and of where a job runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from setpoint.config import Problem, SetpointError

if TYPE_CHECKING:
    import torch

    from setpoint.parallel.config import Parallel
    from setpoint.profile.config import Profiling


def place_problems(section: Profiling, parallel: Parallel) -> Iterator[Problem]:
    """Look for ranks and devices that are not there."""
    size = parallel.world_size
    for index, rank in enumerate(section.ranks or ()):
        if rank >= size:
            yield Problem(
                f"profiling.ranks.{index}",
                f"there is no rank {rank} among {size}",
                valid=("0",) if size == 1 else (f"0 to {size - 1}",),
                also=("parallel.world_size",),
            )
    if section.snapshot and parallel.device == "cpu":
        yield Problem(
            "profiling.snapshot",
            "is of a GPU's memory, and the device is cpu; profiling.memory records allocations "
            "on both",
            valid=("false",),
            also=("parallel.device",),
        )


def snapshot_problems(
    section: Profiling | None, parallel: Parallel, choose: Callable[[Parallel], torch.device]
) -> Iterator[Problem]:
    """Look for a snapshot of a GPU's memory on a machine without one.

    Arguments:
        choose: finds the device of that; what it refuses is said elsewhere.

    Returns:
        the problems; none where the device itself is one.
    """
    if section is None or not section.snapshot or parallel.device == "cpu":
        return
    try:
        device = choose(parallel)
    except SetpointError:
        return
    if device.type != "cuda":
        yield Problem(
            "profiling.snapshot",
            "is of a GPU's memory, and PyTorch sees no GPU on this machine; profiling.memory "
            "records allocations on both",
            valid=("false",),
            also=("parallel.device",),
        )
