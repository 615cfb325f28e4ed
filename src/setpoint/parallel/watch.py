"""How long the ranks of a job wait for each other, and where each of them was when one hangs."""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any, TextIO

from torch import distributed

from setpoint.config import RunError

SHARE = 0.9
"""Of a timeout, after which a rank without progress writes down where it is: before it is ended."""
TICKS = 20
"""How often the time is looked at within a timeout."""

_active: Watch | None = None


class Watch:
    """Limits what one rank waits for others, and writes its stacks where it makes no progress.

    The stacks are those of all threads, written by a thread of faulthandler in C, which needs no
    interpreter lock: what hangs may hold it. They go to standard error, and once the run has a
    directory to `logs/rank-N.stacks`.

    Arguments:
        start: seconds between steps, while data is drawn, and in the first step, which may compile.
        step: seconds in the rest of a step.
    """

    def __init__(self, rank: int, start: float, step: float) -> None:
        self.rank, self.start, self.step = rank, start, step
        self.limit = start
        self.where = "the output of each"
        """Where stacks are written, in words."""
        self._since = time.monotonic()
        self._armed = 0.0
        self._file: TextIO | None = None
        self._groups: dict[Any, list[Callable[[timedelta], None]]] = {}
        self._ends = Event()
        self._thread = Thread(target=self._look, name="setpoint-watch", daemon=True)

    def __enter__(self) -> Watch:
        global _active
        _active = self
        self.expect(self.start)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        global _active
        _active = None
        self._ends.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()
        if self._file is not None:
            self._file.close()
            with suppress(OSError):  # on a disk that fails, an empty file may stay
                if not os.path.getsize(self._file.name):
                    os.unlink(self._file.name)

    def expect(self, seconds: float) -> None:
        """Let the others answer within so many seconds from now on."""
        self._since = time.monotonic()
        waits = timedelta(seconds=seconds)
        # Also groups that others have made since, whose timeout is torch's. No public name lists
        # them; 2.11 to 2.13 have this one.
        for group in distributed.distributed_c10d._world.pg_map:
            setters = self._groups.get(group)
            if setters is None:
                setters = self._groups[group] = _setters(group)
            elif seconds == self.limit:
                continue
            for change in setters:
                change(waits)
        self.limit = seconds

    def leave_alone(self, group: Any) -> None:
        """Let a group keep the timeout that it was made with."""
        self._groups[group] = []

    def progress(self) -> None:
        """Note that this rank has done something."""
        self._since = time.monotonic()

    def keep_in(self, logs: Path) -> None:
        """Write stacks to a file of this rank in a folder from now on.

        Raises:
            RunError: the file cannot be written.
        """
        path = logs / f"rank-{self.rank}.stacks"
        try:
            # Closed by `__exit__`.
            self._file = open(  # noqa: SIM115
                path, "a", encoding="utf-8", opener=_not_linked
            )
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error.strerror}") from error
        self._since = time.monotonic()
        self.where = str(logs / "rank-N.stacks")

    def _look(self) -> None:
        """Set the clock of faulthandler forward wherever there was progress."""
        while True:
            since, now = self._since, time.monotonic()
            if since != self._armed:
                left = max(since + SHARE * self.limit - now, 0.001)
                faulthandler.dump_traceback_later(left, file=self._file or sys.__stderr__ or 2)
                self._armed = since
            if self._ends.wait(self.limit / TICKS):
                return


def _not_linked(path: str, flags: int) -> int:
    """Open a file that is no link: a run directory may come from others."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _setters(group: Any) -> list[Callable[[timedelta], None]]:
    """What changes the timeout of a process group, for each of its backends."""
    backends = {group._get_backend(device) for device in group._device_types}
    # gloo and NCCL have it; a backend of another package keeps the timeout that it began with.
    return [each._set_default_timeout for each in backends if hasattr(each, "_set_default_timeout")]


def record_collectives() -> None:
    """Let NCCL keep its latest collectives, and write them where one is not answered in time.

    That is PyTorch's flight recorder; variables of the environment that are set stay as they are.
    """
    os.environ.setdefault("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000")
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")


def active_watch() -> Watch | None:
    """The watch of this rank; None outside of `joined`, and where there is one rank."""
    return _active


def step_begins(first: bool) -> None:
    """Wait for other ranks within a step from now on, where all of them have its batch.

    Arguments:
        first: of a session, in which models are compiled.
    """
    if _active is not None:
        _active.expect(_active.start if first else _active.step)


def step_has_ended() -> None:
    """Wait for other ranks outside of steps, where one of them evaluates or saves."""
    if _active is not None:
        _active.expect(_active.start)


def keep_timeout_of(group: Any) -> None:
    """Let a process group keep the timeout that it was made with, whatever step the run is in."""
    if _active is not None:
        _active.leave_alone(group)


def has_progressed() -> None:
    """Note that this rank is not hanging."""
    if _active is not None:
        _active.progress()


def keep_hangs_in(logs: Path) -> None:
    """Write what is known of a hang to a folder, which is there.

    Stacks go to standard error before that, and what NCCL recorded to /tmp.
    """
    if _active is not None:
        _active.keep_in(logs)
        os.environ.setdefault("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", str(logs / "nccl-rank-"))
