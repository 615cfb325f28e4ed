"""Cross-section checks of `[compile]`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Problem

if TYPE_CHECKING:
    from setpoint.train.config import Job


def optimize_ddp_is_dead(job: Job) -> str | None:
    """Say when no graph is divided by the buckets of DDP."""
    parallel = job.parallel
    if parallel.world_size == 1:
        return "there is one rank"
    is_divided = parallel.copies < parallel.world_size
    return "the model is divided, and not replicated by DDP alone" if is_divided else None


def compiler_problems(job: Job) -> Iterator[Problem]:
    """Look for what torch.compile needs of this machine.

    Returns:
        the problems; none where the device is missing, which is a problem of its own.
    """
    import torch

    from setpoint.compile.checks import machine_problems

    section, device = job.compile, job.parallel.device
    assert section is not None
    has_gpu = torch.cuda.is_available()
    if device == "auto":
        device = "cuda" if has_gpu else "cpu"
    if device == "cpu" or has_gpu:
        yield from machine_problems(section, device)
