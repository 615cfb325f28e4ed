"""What makes a run leave by itself: its time, the end of its job, and its stop file."""

from __future__ import annotations

import os
from pathlib import Path

from setpoint.config import SetpointError
from setpoint.parallel.rank import launcher_process, own_rank
from setpoint.resilience.limits import END_OF_JOB, Limits, end_of_job, started_at
from setpoint.resilience.signals import StopRequest
from setpoint.train.config import Job


def watch_limits(stop: StopRequest, job: Job, folder: str | Path) -> None:
    """Begin to look for what ends this session from outside; a second call changes nothing.

    Arguments:
        folder: the run directory, which need not be there yet.

    Raises:
        SetpointError: the scheduler names an end that is over or no time.
    """
    if stop.limits is not None:
        return
    section, ends = job.resilience, dict[str, float]()
    if section.time_limit.unit == "seconds":
        # Ranks that are started again go on within the time of their launcher.
        began = started_at(launcher_process() or os.getpid())
        ends[f"resilience.time_limit = {section.time_limit}"] = began + section.time_limit.count
    end = end_of_job() if section.deadline == "auto" else None
    if end is not None:
        ends[END_OF_JOB] = end
    file = stop_file_of(job, folder) if own_rank() == 0 else None
    limits = stop.limits = Limits(stop.ask, ends, file)
    limits.start()


def stop_file_of(job: Job, folder: str | Path) -> Path | None:
    """Where the file lies that stops a run; None where none does."""
    name = job.resilience.stop_file
    return None if name is None else Path(folder, name)


def refuse_stopped(job: Job, folder: str | Path) -> None:
    """Refuse a run that a file has stopped, until that is removed.

    Raises:
        SetpointError: it is there.
    """
    file = stop_file_of(job, folder)
    if file is not None and file.exists():
        raise SetpointError(
            f"{file} is there, and stops the run.\nValid: remove it, or --resilience.stop_file null"
        )
