"""When a run has to leave by itself: its time is over, or a file asks for it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event, Thread, current_thread

from setpoint.config import SetpointError

END_OF_JOB = "SLURM_JOB_END_TIME"
"""Where Slurm tells a job when it ends, in seconds since 1970."""
LOOK = 1.0
"""Seconds between two looks at the file."""
SPARE = 2.0
"""Seconds that are left beyond what steps and saves have taken."""


class Limits:
    """Asks a run to stop in time, from a thread, so that the beginning is no exception.

    A request may come when a step has just begun and, of several ranks, is heard of in the next
    one, after which a checkpoint is saved: so long before the end as two steps and a save of this
    session have taken at most. The first step of a session, in which things are compiled, counts
    where there is no other.

    Arguments:
        ask: for a stop, with the reason.
        ends: when the run has to have left, in seconds since 1970, by what says so.
        file: that asks for a stop by being there; None: none, or another rank looks for it.
    """

    def __init__(
        self, ask: Callable[[str], None], ends: Mapping[str, float], file: Path | None
    ) -> None:
        now, clock = time.monotonic(), time.time()
        # Afterwards the clock may be set.
        self.ends = {why: now + (end - clock) for why, end in ends.items()}
        self.ask, self.file = ask, file
        self.longest_step = self.longest_save = 0.0
        self._steps = 0
        self._ended = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Begin to look; nothing happens where there is nothing to look for."""
        if self._thread is None and (self.ends or self.file is not None):
            self._thread = Thread(target=self._run, name="setpoint-limits", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._ended.set()
        if self._thread is not None and self._thread is not current_thread():
            self._thread.join()

    def step_took(self, seconds: float) -> None:
        """Note how long a step took, with all that follows it."""
        self._steps += 1
        self.longest_step = seconds if self._steps <= 2 else max(self.longest_step, seconds)

    def save_took(self, seconds: float) -> None:
        """Note how long a checkpoint took until it was on the disk."""
        self.longest_save = max(self.longest_save, seconds)

    @property
    def reserve(self) -> float:
        """Seconds before an end at which a stop is asked for."""
        return SPARE + 2 * self.longest_step + self.longest_save

    def reason(self) -> str | None:
        """Why the run has to leave now; None if it need not."""
        if self.file is not None and self.file.exists():
            return f"the stop file {self.file}, to be removed before it resumes"
        if self.ends:
            why, end = min(self.ends.items(), key=lambda pair: pair[1])
            if time.monotonic() >= end - self.reserve:
                return why
        return None

    def _run(self) -> None:
        while True:
            reason = self.reason()
            if reason is not None:
                self.ask(reason)
                return
            left = min((end - self.reserve - time.monotonic() for end in self.ends.values()),
                       default=LOOK)  # fmt: skip
            if self._ended.wait(min(LOOK, max(0.01, left))):
                return


def end_of_job() -> float | None:
    """When Slurm ends the job that this process is of, in seconds since 1970; None without one.

    Raises:
        SetpointError: what it says is no time, or is over.
    """
    text = os.environ.get(END_OF_JOB)
    if text is None:
        return None
    try:
        end = float(text)
    except ValueError:
        end = float("nan")
    if not end > time.time():
        what = "is over" if end == end else "is no number of seconds since 1970"
        raise SetpointError(
            f"{END_OF_JOB} = {text}: the end of the job {what}, as where the variable of another "
            f"job was left behind.\nValid: resilience.deadline = never, or none such variable"
        )
    return end


def started_at(process: int) -> float:
    """When a process was started, in seconds since 1970; now, where the system does not say."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            # The name of the program, in parentheses, may hold anything.
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        with open("/proc/stat", "rb") as file:
            booted = next(int(line.split()[1]) for line in file if line.startswith(b"btime"))
    except (OSError, ValueError, IndexError, StopIteration):
        return time.time()
    return booted + ticks / os.sysconf("SC_CLK_TCK")
