"""What profiles and the collection of garbage need of an inference job, as it tells by itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Problem
from setpoint.profile.fit import place_problems

if TYPE_CHECKING:
    from setpoint.infer.config import Inference

THROUGH_THE_MODEL = ("generation", "evaluation", "harness")
"""The tasks that ask the model."""


def pass_problems(job: Inference) -> Iterator[Problem]:
    """Look for what is to be done between passes through a model, and cannot be."""
    profiling, gc = job.profiling, job.resilience.gc
    asked = {"profiling": profiling, "resilience.gc": gc}
    if all(getattr(job, name) is None for name in THROUGH_THE_MODEL):
        for path in [path for path, section in asked.items() if section is not None]:
            yield Problem(
                path,
                "has no effect: nothing goes through the model",
                also=THROUGH_THE_MODEL,
                hint="Remove it.",
            )
        return
    if profiling is not None:
        yield from place_problems(profiling, job.parallel)
        if job.output is None and not os.path.isabs(os.path.expanduser(profiling.directory)):
            yield Problem(
                "profiling.directory",
                "is a folder in the directory of the results, and none is given",
                also=("output",),
                hint="Set output, or give an absolute folder.",
            )
    if gc is not None and gc.every.unit not in ("steps", "seconds", "never"):
        yield Problem(
            "resilience.gc.every",
            "counts what only training does; a step is a pass through the model here",
            valid=("100 steps", "10 min"),
        )
