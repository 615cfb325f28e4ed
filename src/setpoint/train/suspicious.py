"""What is legal in a training job and yet seldom meant; each finding has a code to silence it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Caution

if TYPE_CHECKING:
    from setpoint.train.config import Job

WARMUP = "warmup-longer-than-run"
HORIZON = "horizon-differs-from-run"
NEVER_SAVED = "saved-only-at-the-end"
HIGH_RATE = "learning-rate-high"
CAUTIONS = {
    WARMUP: "the warm-up is as long as the run, or longer",
    HORIZON: "the learning-rate curve ends before the run does, or after it",
    NEVER_SAVED: "a long run saves no checkpoint before its end",
    HIGH_RATE: "the peak learning rate is far above what is usual",
}

# Peaks of published runs lie two orders of magnitude below; a slip such as 3e4 lies above.
UNUSUAL_RATE = 0.1
LONG = 1000  # updates whose loss hurts


def suspicious(job: Job) -> Iterator[Caution]:
    """Look for what is seldom meant.

    Arguments:
        job: the configuration, with every value determined.

    Returns:
        the findings.
    """
    updates = job.updates()
    if job.optimizer.lr > UNUSUAL_RATE:
        yield Caution(
            HIGH_RATE,
            "optimizer.lr",
            f"a peak learning rate above {UNUSUAL_RATE:g} is unusual for type = "
            f"{type(job.optimizer).__setpoint__.tag}",
        )
    if updates is None:
        return
    warmup = getattr(job.schedule, "warmup_steps", 0)
    if warmup >= updates:
        yield Caution(
            WARMUP,
            "schedule.warmup_steps",
            f"{warmup} updates of warm-up in a run of {updates}: the peak learning rate is "
            f"reached at its very end or never",
            valid=(str(updates // 20),),
            also=("duration",),
        )
    horizon = getattr(job.schedule, "horizon_steps", updates)
    if horizon != updates:
        effect = (
            f"the last {updates - horizon} train at the floor"
            if horizon < updates
            else "the learning rate never comes down to the floor"
        )
        yield Caution(
            HORIZON,
            "schedule.horizon_steps",
            f"the curve ends at update {horizon} and the run at {updates}: {effect}",
            valid=(str(updates),),
            also=("duration",),
        )
    every = job.checkpoint.every
    in_steps = every.unit == "steps" and every.count >= updates
    if updates >= LONG and (in_steps or every.unit in ("last_step", "never")):
        yield Caution(
            NEVER_SAVED,
            "checkpoint.every",
            f"nothing is saved before the end of {updates} updates; a crash would lose them all",
            valid=(f"{max(updates // 10, 1)} steps",),
            also=("duration",),
        )
