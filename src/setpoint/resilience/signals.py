"""Orderly stops: a signal asks the loop to save and leave after the update it is in."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

PREEMPTED, INTERRUPTED = 75, 130


class StopRequest:
    """Whether somebody has asked the run to stop, and how the process is to leave then.

    Inside a `with` block SIGTERM asks for a stop as preemption and SIGINT (Ctrl-C) as an
    interruption; a second Ctrl-C does not wait. The handlers of before come back at the end.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether to stop after the present update."""
        return self.signal is not None

    @property
    def status(self) -> int:
        """The exit status: 0 without a request, 75 for SIGTERM, 130 for Ctrl-C."""
        if self.signal is None:
            return 0
        return PREEMPTED if self.signal == signal.SIGTERM else INTERRUPTED

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.signal == signal.SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number
