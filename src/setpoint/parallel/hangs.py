"""Detection of hanging ranks: timeouts, stack dumps and liveness checks."""

from __future__ import annotations

import faulthandler
import os
import re
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

from torch import distributed

from setpoint.config import RunError
from setpoint.files.atomic import not_linked
from setpoint.files.threads import Periodic

SHARE = 0.9
"""Share of a timeout after which a rank without progress dumps its stacks, before it is ended."""
TICKS = 20
"""Looks at the time within a timeout."""
_SILENT = re.compile(r"Ranks? ([\d, ]+) failed to pass")

_active: HangWatch | None = None


class HangWatch:
    """Limit on the time a rank waits for others, with a stack dump if the rank makes no progress.

    A C thread of faulthandler writes the stacks of all threads without taking the GIL, which the
    hanging code may hold. Stacks are written to standard error, and to `logs/rank-N.stacks` once
    the run has a directory.

    Arguments:
        start: seconds allowed between steps, while data is read, and in the first step, which may
            compile.
        step: seconds allowed in the rest of a step.
    """

    def __init__(self, rank: int, start: float, step: float) -> None:
        self.rank, self.start, self.step = rank, start, step
        self.limit = start
        self.where = "the output of each"
        """The place of the stacks, in words."""
        self._since = time.monotonic()
        self._armed = 0.0
        self._file: TextIO | None = None
        self._groups: list[Any] = [None]  # the group of all ranks
        self._clock = Periodic(
            lambda: self.limit / TICKS, self._set_clock, "setpoint-watch", at_once=True
        )

    def __enter__(self) -> HangWatch:
        global _active
        _active = self
        self._clock.start()
        return self

    def __exit__(self, *_: object) -> None:
        global _active
        _active = None
        self._clock.end()
        faulthandler.cancel_dump_traceback_later()
        if self._file is not None:
            self._file.close()
            with suppress(OSError):  # on a failing disk, an empty file may stay
                if not os.path.getsize(self._file.name):
                    os.unlink(self._file.name)

    def add(self, groups: list[Any]) -> None:
        """Also limit the waits in further process groups."""
        self._groups += groups
        _set_timeouts(groups, self.limit)

    def expect(self, seconds: float) -> None:
        """Set the timeout of process groups, in seconds."""
        self.progress()
        if seconds != self.limit:
            self.limit = seconds
            _set_timeouts(self._groups, seconds)

    def progress(self) -> None:
        """Record that this rank made progress."""
        self._since = time.monotonic()

    def keep_in(self, logs: Path) -> None:
        """Write stacks to this rank's file in a folder from now on.

        Raises:
            RunError: the file cannot be written.
        """
        path = logs / f"rank-{self.rank}.stacks"
        try:
            # Closed by `__exit__`.
            self._file = open(path, "a", encoding="utf-8", opener=not_linked)  # noqa: SIM115
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error.strerror}") from error
        self.progress()
        self.where = str(logs / "rank-N.stacks")

    def _set_clock(self) -> None:
        """Restart faulthandler's timer after progress."""
        since = self._since
        if since != self._armed:
            remaining = max(since + SHARE * self.limit - time.monotonic(), 0.001)
            faulthandler.dump_traceback_later(remaining, file=self._file or sys.__stderr__ or 2)
            self._armed = since


class LivenessCheck:
    """Liveness check in which all ranks answer rank 0 over gloo on the CPU.

    Creation and calls are collectives.

    Arguments:
        size: the number of ranks.
        timeout: seconds that rank 0 waits for an answer.
    """

    def __init__(self, size: int, timeout: float) -> None:
        self.timeout = timeout
        self._group: Any = None
        if size > 1:
            waits = timedelta(seconds=timeout)
            self._group = distributed.new_group(
                backend="gloo", timeout=waits, group_desc="liveness"
            )

    def __call__(self, step: int) -> None:
        """Run one check.

        Arguments:
            step: the step that begins, for messages.

        Raises:
            RuntimeError: some ranks do not answer; rank 0 names them.
        """
        if self._group is None:
            return
        before = None if _active is None else _active.limit
        _expect(self.timeout)  # so that stacks are written in time
        try:
            distributed.monitored_barrier(
                self._group, timedelta(seconds=self.timeout), wait_all_ranks=True
            )
        except RuntimeError as error:
            silent = _SILENT.search(str(error))
            if silent is None:
                raise  # another rank names them
            ranks = silent[1].split(", ")
            raise RuntimeError(
                f"no answer from rank{'s' * (len(ranks) > 1)} {silent[1]} in the liveness check "
                f"before step {step}: timed out waiting {self.timeout:g} s"
            ) from error
        _expect(before)


def _set_timeouts(groups: list[Any], seconds: float) -> None:
    # PyTorch has no public function to change the timeout of a group; a new group for each phase of
    # a step would need a collective. gloo and NCCL support timeouts; other backends keep theirs.
    for group in groups:
        distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group)


def record_collectives() -> None:
    """Enable PyTorch's flight recorder of NCCL collectives, dumped on a timeout.

    Variables set in the environment are kept.
    """
    os.environ.setdefault("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000")
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")


def meeting_time() -> timedelta | None:
    """Timeout for creating a process group; None: torch's default."""
    return None if _active is None else timedelta(seconds=_active.start)


def limit_waits(*groups: Any) -> None:
    """Apply the timeouts of the default process group to new groups."""
    if _active is not None:
        _active.add(list(groups))


def step_begins(first: bool) -> None:
    """Switch to the timeout within steps: all ranks have their batches.

    Arguments:
        first: whether it is the first step of a session, which compiles models.
    """
    if _active is not None:
        _active.expect(_active.start if first else _active.step)


def step_has_ended() -> None:
    """Switch to the timeout outside steps, as for evaluations and saves."""
    if _active is not None:
        _active.expect(_active.start)


def has_progressed() -> None:
    """Record that this rank is not hanging."""
    if _active is not None:
        _active.progress()


def keep_hangs_in(logs: Path) -> None:
    """Write hang reports to an existing folder.

    Before that, stacks are written to standard error, and NCCL's records to /tmp.
    """
    if _active is not None:
        _active.keep_in(logs)
        os.environ.setdefault("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", str(logs / "nccl-rank-"))


def _expect(seconds: float | None) -> None:
    if _active is not None and seconds is not None:
        _active.expect(seconds)
