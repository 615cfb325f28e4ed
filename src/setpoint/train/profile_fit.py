"""What the profiler needs of the other sections, as far as the configuration tells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Problem
from setpoint.profile.fit import place_problems
from setpoint.profile.fit import snapshot_problems as missing_gpu

if TYPE_CHECKING:
    from setpoint.profile.config import Profiling
    from setpoint.train.config import Job


def profile_problems(job: Job) -> Iterator[Problem]:
    """Look for what the profiler cannot do with this job."""
    section = job.profiling
    if section is None:
        return
    updates = job.updates()
    if updates is not None:
        yield from _windows(section, updates)
    yield from place_problems(section, job.parallel)


def snapshot_problems(job: Job) -> Iterator[Problem]:
    """Look for a snapshot of a GPU's memory on a machine without one.

    Returns:
        the problems; none where the device itself is one.
    """
    from setpoint.parallel.device import choose_device

    yield from missing_gpu(job.profiling, job.parallel, choose_device)


def _windows(section: Profiling, updates: int) -> Iterator[Problem]:
    """Whether the cycles lie within the run. A session more goes through them again."""
    cycle = section.wait + section.warmup + section.active
    first = section.skip + cycle
    parts = {"wait": section.wait, "warmup": section.warmup, "active": section.active}
    counted = " + ".join(f"{count} ({name})" for name, count in parts.items())
    also = (*(f"profiling.{name}" for name in ("skip", *parts)), "duration")
    if first > updates:
        yield Problem(
            "profiling",
            f"the first cycle is over after {first} = {section.skip} (skip) + {counted} updates, "
            f"and the run has {updates}",
            also=also,
        )
        return
    repeat = section.repeat
    if repeat is not None and section.skip + repeat * cycle > updates:
        fit = (updates - section.skip) // cycle
        yield Problem(
            "profiling.repeat",
            f"{repeat} cycles are over after {section.skip + repeat * cycle} = {section.skip} "
            f"(skip) + {repeat} * ({counted}) updates, and the run has {updates}",
            valid=(str(fit), "null"),
            also=also,
        )
