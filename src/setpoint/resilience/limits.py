"""Limits of a session: its time limit, the end of its Slurm job, and its stop file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from setpoint.config import SetpointError
from setpoint.files.threads import Periodic
from setpoint.resilience.config import TrainingResilience
from setpoint.resilience.signals import StopRequest

END_OF_JOB = "SLURM_JOB_END_TIME"
"""Slurm's variable with the end of the job, in seconds since 1970."""
LOOK = 1.0
"""Polling interval of the stop file, in seconds."""
SPARE = 2.0
"""Safety margin beyond the time of steps and saves, in seconds."""


class SessionLimits:
    """Requests a stop in time, from a thread, so that the start of a session is also covered.

    A request may come when a step has just begun; with several ranks it takes effect in the next
    step, after which a checkpoint is saved. It therefore precedes the end by the maximum time of
    two steps and a save in this session. The first step, which includes compilation, counts only if
    there is no other.

    Arguments:
        ask: requests a stop, with the reason.
        ends: latest exit times, in seconds since 1970, by source.
        file: stop file, whose existence requests a stop; None if there is none, or another rank
            checks it.
    """

    def __init__(
        self, ask: Callable[[str], None], ends: Mapping[str, float], file: Path | None
    ) -> None:
        now, clock = time.monotonic(), time.time()
        # The clock may be changed later.
        self.ends = {why: now + (end - clock) for why, end in ends.items()}
        self.ask, self.file = ask, file
        self.longest_step = self.longest_save = 0.0
        self._steps = 0
        self._periodic = Periodic(self._pause, self._check, "setpoint-limits", at_once=True)

    def start(self) -> None:
        """Start the thread, if there is a limit or a stop file."""
        if self.ends or self.file is not None:
            self._periodic.start()

    def close(self) -> None:
        """Stop the thread."""
        self._periodic.end()

    def step_took(self, seconds: float) -> None:
        """Record the duration of a step with its callbacks."""
        self._steps += 1
        self.longest_step = seconds if self._steps <= 2 else max(self.longest_step, seconds)

    def save_took(self, seconds: float) -> None:
        """Record the duration of a checkpoint until it was on disk."""
        self.longest_save = max(self.longest_save, seconds)

    @property
    def reserve(self) -> float:
        """Seconds before an end at which a stop is requested."""
        return SPARE + 2 * self.longest_step + self.longest_save

    def reason(self) -> str | None:
        """Reason to stop now; None if there is none."""
        if self.file is not None and self.file.exists():
            return f"the stop file {self.file}, which must be removed before it resumes"
        if self.ends:
            why, end = min(self.ends.items(), key=lambda pair: pair[1])
            if time.monotonic() >= end - self.reserve:
                return why
        return None

    def _check(self) -> None:
        reason = self.reason()
        if reason is not None:
            self.ask(reason)
            self._periodic.end()

    def _pause(self) -> float:
        now = time.monotonic()
        left = min((end - self.reserve - now for end in self.ends.values()), default=LOOK)
        return min(LOOK, max(0.01, left))


def watch_limits(
    stop: StopRequest,
    section: TrainingResilience,
    folder: str | Path,
    launcher: int | None = None,
    is_main: bool = True,
) -> None:
    """Start watching the limits of this session; a second call has no effect.

    Arguments:
        folder: the run directory, which may not exist yet.
        launcher: process whose start counts for the time limit; None: this process.
        is_main: whether to look for the stop file.

    Raises:
        SetpointError: the end given by the scheduler is in the past or invalid.
    """
    if stop.limits is not None:
        return
    ends = dict[str, float]()
    if section.time_limit.unit == "seconds":
        # Restarted ranks continue within the time of their launcher.
        began = started_at(launcher or os.getpid())
        ends[f"resilience.time_limit = {section.time_limit}"] = began + section.time_limit.count
    end = end_of_job() if section.deadline == "auto" else None
    if end is not None:
        ends[END_OF_JOB] = end
    file = stop_file_of(section, folder) if is_main else None
    limits = stop.limits = SessionLimits(stop.ask, ends, file)
    limits.start()


def stop_file_of(section: TrainingResilience, folder: str | Path) -> Path | None:
    """Path of a run's stop file; None if it has none."""
    return None if section.stop_file is None else Path(folder, section.stop_file)


def refuse_stopped(section: TrainingResilience, folder: str | Path) -> None:
    """Refuse a run while its stop file exists.

    Raises:
        SetpointError: the stop file exists.
    """
    file = stop_file_of(section, folder)
    if file is not None and file.exists():
        raise SetpointError(
            f"{file} exists and stops the run.\nValid: remove it, or --resilience.stop_file null"
        )


def end_of_job() -> float | None:
    """End of this process's Slurm job, in seconds since 1970; None if there is none.

    Raises:
        SetpointError: the variable is not a time, or is in the past.
    """
    text = os.environ.get(END_OF_JOB)
    if text is None:
        return None
    try:
        end = float(text)
    except ValueError:
        end = float("nan")
    if not end > time.time():
        fault = "is in the past" if end == end else "is not a number of seconds since 1970"
        raise SetpointError(
            f"{END_OF_JOB} = {text}, the end of the job, {fault}; the variable may be left over "
            f"from another job.\nValid: resilience.deadline = never, or unset the variable"
        )
    return end


def started_at(process: int) -> float:
    """Start time of a process, in seconds since 1970; now if unknown."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            # The name of the program, in parentheses, may contain any characters.
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        with open("/proc/stat", "rb") as file:
            booted = next(int(line.split()[1]) for line in file if line.startswith(b"btime"))
    except (OSError, ValueError, IndexError, StopIteration):
        return time.time()
    return booted + ticks / os.sysconf("SC_CLK_TCK")
