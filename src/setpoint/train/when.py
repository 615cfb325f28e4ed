"""Whether there is anything to look at for checks that need torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from setpoint.optim.config import SGD

if TYPE_CHECKING:
    from setpoint.train.config import Job


def unlisted(job: Job) -> bool:
    """Say whether only the built model tells what patterns of the optimizer match."""
    if not job.optimizer.has_patterns:
        return False
    from setpoint.train.optimizer_fit import is_listed

    return not is_listed(job.model)


def fused(job: Job) -> bool:
    """Say whether PyTorch's fused SGD may be to update weights in bf16 on a CPU, which it cannot.

    Returns:
        True where it is demanded and the device may be a CPU; auto takes another implementation.
    """
    optimizer = job.optimizer
    if not isinstance(optimizer, SGD) or optimizer.implementation != "fused":
        return False
    if job.parallel.device == "cuda":
        return False
    return (job.precision.master or job.precision.params) == "bf16"
