"""What cannot be deterministic, said before the training begins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Problem
from setpoint.model.attention.support import determinism_problems as of_attention
from setpoint.model.config import Transformer
from setpoint.parallel.workspace import VARIABLE, WORKSPACES, unfit_workspace

if TYPE_CHECKING:
    from setpoint.train.config import Job


def determinism_problems(job: Job) -> Iterator[Problem]:
    """Look for what gives other sums in each run.

    Arguments:
        job: the configuration, with every value determined; it is to be deterministic.
    """
    if isinstance(job.model, Transformer):
        yield from of_attention(job.model)
    if job.parallel.device == "cuda":
        yield from workspace_problems()


def workspace_problems() -> Iterator[Problem]:
    """Look for a setting of cuBLAS that PyTorch would refuse at the first product on a GPU."""
    value = unfit_workspace()
    if value is not None:
        yield Problem(
            "deterministic",
            f"the environment has {VARIABLE} = {value}, with which cuBLAS gives other sums in each "
            f"run",
            hint=f"Unset it, or set it to {' or '.join(WORKSPACES)}.",
        )
