"""Cross-section checks of `model.attention_backend`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Problem
from setpoint.model.attention.support import determinism_problems, placement_problems
from setpoint.model.config import Transformer

if TYPE_CHECKING:
    from setpoint.train.config import Job


def backend_problems(job: Job) -> Iterator[Problem]:
    """Find what the backend cannot do on the kind of device, with the dtype, or repeatably."""
    assert isinstance(job.model, Transformer)
    if job.deterministic:
        yield from determinism_problems(job.model)
    device, compute = job.parallel.device, job.precision.compute
    yield from placement_problems(job.model, device, compute, training=True)


def device_problems(job: Job) -> Iterator[Problem]:
    """Find why the backend does not run on the device that is here."""
    from setpoint.model.attention import selection  # which needs torch

    device, compute = job.parallel.device, job.precision.compute
    yield from selection.device_problems(job.model, device, compute, training=True)
