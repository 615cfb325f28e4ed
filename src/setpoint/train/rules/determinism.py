"""Cross-section checks of `deterministic`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Problem
from setpoint.parallel.workspace import VARIABLE, WORKSPACES, unfit_workspace

if TYPE_CHECKING:
    from setpoint.train.config import Job


def workspace_problems(job: Job) -> Iterator[Problem]:
    """Look for a setting of cuBLAS that PyTorch would refuse at the first product on a GPU."""
    if job.parallel.device == "auto":
        from torch import cuda

        if not cuda.is_available():
            return
    value = unfit_workspace()
    if value is not None:
        yield Problem(
            "deterministic",
            f"the environment has {VARIABLE} = {value}, with which cuBLAS gives other sums in each "
            f"run",
            hint=f"Unset it, or set it to {' or '.join(WORKSPACES)}.",
        )
