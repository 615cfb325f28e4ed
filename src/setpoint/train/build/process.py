"""What a job sets for the whole process, for as long as it is built and trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from setpoint.compile.settings import compiling
from setpoint.memory.heap import keep_freed
from setpoint.parallel.determinism import determinism

if TYPE_CHECKING:
    from setpoint.train.config import Job


@contextmanager
def settings_of(job: Job) -> Iterator[None]:
    """Set what a job is built and trained under.

    Returns:
        a context, after which all is as it was before, however it was left.

    Raises:
        SetpointError: the folder for compiled code cannot be made or written to.
        RunError: in place of what PyTorch raises at an operation that has no deterministic form.
    """
    heap = keep_freed(job.memory.keep_freed)
    with heap, determinism(job.deterministic), compiling(job.compile):
        yield
