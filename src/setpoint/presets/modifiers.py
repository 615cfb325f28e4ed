"""Modifiers: functions from config to config, for any preset."""

from __future__ import annotations

from setpoint.config import Invalid, modifier
from setpoint.train.config import Job
from setpoint.units import Duration, Period


@modifier
def smoke(job: Job, steps: int = 10) -> Job:
    """Only a few steps and a short evaluation, to see that a configuration runs at all.

    Raises:
        Invalid: the number of steps is below 1.
    """
    if steps < 1:
        raise Invalid(f"steps must be at least 1, got {steps}")
    job.duration = Duration(f"{steps} steps")
    if job.evaluation is not None:
        job.evaluation.every = Period("last_step")
        job.evaluation.sequences = 16
    return job


@modifier
def reproducible(job: Job) -> Job:
    """Deterministic operations and full precision throughout."""
    job.deterministic = True
    job.precision.compute = "fp32"
    return job
