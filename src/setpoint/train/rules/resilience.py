"""Cross-section checks for `[resilience]`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Problem

if TYPE_CHECKING:
    from setpoint.train.config import Job


def rollback_problems(job: Job) -> Iterator[Problem]:
    """Look for a run that goes back to checkpoints and saves none while it trains."""
    for field in job.resilience.rollbacks:
        yield from _problems_of(job, field)


def _problems_of(job: Job, field: str) -> Iterator[Problem]:
    if not job.checkpoint.write:
        yield Problem(
            field,
            "rollback goes back to the newest checkpoint, and checkpoint.write = false saves none",
            valid=("fail", "skip"),
            also=("checkpoint.write",),
        )
    elif not job.checkpoint.at_start and all(
        every.unit in ("never", "last_step") for every in job.checkpoint.intervals
    ):
        yield Problem(
            field,
            "rollback goes back to the newest checkpoint, and none is saved before the end",
            valid=("fail", "skip"),
            also=("checkpoint.every", "checkpoint.at_start"),
            hint="Or save checkpoints while it trains, with checkpoint.every.",
        )
