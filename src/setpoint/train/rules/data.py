"""Cross-section checks of `[data]`: the phases of a mixture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Problem
from setpoint.train.batch import steps_before

if TYPE_CHECKING:
    from setpoint.train.config import Job


def phase_problems(job: Job) -> Iterator[Problem]:
    """Find phases that do not start after the one before, or only after the end of the run."""
    end, before, last = job.total_steps(), 0, "the run"
    phases = [(f"data.phases.{index}", phase) for index, phase in enumerate(job.data.phases)]
    if job.data.anneal is not None:
        phases.append(("data.anneal", job.data.anneal))
    for path, phase in phases:
        step = steps_before(phase.start, job.batch)
        if step <= before:
            yield Problem(
                f"{path}.start",
                f"is step {step}, and {last} starts at step {before}; starts must rise",
                valid=(f"{before + 1} steps",) if end is None or before + 1 < end else (),
                also=("batch",) if phase.start.unit == "tokens" else (),
            )
        elif end is not None and step >= end:
            yield Problem(
                f"{path}.start",
                f"is step {step}, and the run ends after {end} steps",
                valid=(f"{end - 1} steps",) if end - 1 > before else (),
                also=("duration",),
            )
        before, last = max(before, step), path
