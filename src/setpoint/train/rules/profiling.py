"""Cross-section checks of `[profiling]`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Problem
from setpoint.profile.checks import rank_problems

if TYPE_CHECKING:
    from setpoint.profile.config import Profiling
    from setpoint.train.config import Job


def profiling_problems(job: Job) -> Iterator[Problem]:
    """Find cycles that do not lie within the run, and ranks that are not there."""
    section, steps = job.profiling, job.total_steps()
    assert section is not None
    if steps is not None:
        yield from _windows(section, steps)
    yield from rank_problems(section, job.parallel)


def _windows(section: Profiling, steps: int) -> Iterator[Problem]:
    """Whether the cycles lie within the run. A session more goes through them again."""
    cycle = section.wait + section.warmup + section.active
    first = section.skip + cycle
    parts = {"wait": section.wait, "warmup": section.warmup, "active": section.active}
    counted = " + ".join(f"{count} ({name})" for name, count in parts.items())
    also = (*(f"profiling.{name}" for name in ("skip", *parts)), "duration")
    if first > steps:
        yield Problem(
            "profiling",
            f"the first cycle is over after {first} = {section.skip} (skip) + {counted} steps, "
            f"and the run has {steps}",
            also=also,
        )
        return
    repeat = section.repeat
    if repeat is not None and section.skip + repeat * cycle > steps:
        fit = (steps - section.skip) // cycle
        yield Problem(
            "profiling.repeat",
            f"{repeat} cycles are over after {section.skip + repeat * cycle} = {section.skip} "
            f"(skip) + {repeat} * ({counted}) steps, and the run has {steps}",
            valid=(str(fit), "null"),
            also=also,
        )
