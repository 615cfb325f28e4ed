"""The live bar on a terminal."""

from __future__ import annotations

import pdb
import sys
import time
from functools import wraps
from typing import Any, TextIO

from rich.console import Console
from rich.file_proxy import FileProxy
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as RichProgress

from .progress import Pace, Progress, Reading, reading_parts, work_text

_SECONDS_BETWEEN_STEPS = 0.1
_shown: BarProgress | None = None
"""The bar that is on the terminal."""


class BarProgress(Progress):
    """A bar with the last reading beside it; notes stay above it.

    Arguments:
        total_steps: after which the run ends; without it the bar follows `Reading.fraction`.
    """

    def __init__(self, total_steps: int | None, stream: TextIO) -> None:
        self.total_steps = total_steps
        # Four frames a second: drawing takes the interpreter away from the training loop.
        self._bar = RichProgress(
            BarColumn(),
            TextColumn("{task.description}", markup=False),
            console=Console(file=stream, force_terminal=True, highlight=False),
            refresh_per_second=4,
        )
        self._task = self._bar.add_task("starting", total=total_steps)
        self._reading = Reading(0)
        self._drawn = -1.0
        self._work: tuple[str, TaskID] | None = None
        self._pace = Pace()
        # How many debuggers, one inside another, have the terminal.
        self._paused = 0

    def start(self) -> None:
        """See `Progress.start`."""
        global _shown
        if not self._paused:
            _shown = self
            _make_way_for_debuggers()
            self._bar.start()

    def pause(self) -> None:
        """Leave the terminal to a debugger."""
        self._paused += 1
        self._bar.stop()

    def go_on(self, shows: bool) -> None:
        """Take the terminal back.

        Arguments:
            shows: whether the bar is drawn again.
        """
        self._paused -= 1
        if shows:
            self.start()

    def advance(self, step: int) -> None:
        """See `Progress.advance`."""
        now = time.monotonic()
        if now - self._drawn < _SECONDS_BETWEEN_STEPS:
            return
        self._drawn = now
        read = self._reading
        self._draw(Reading(step, read.loss, read.tokens_per_second, read.seconds_left, read.mfu))

    def show(self, reading: Reading) -> None:
        """See `Progress.show`."""
        self._reading = reading
        self._draw(reading)

    def note(self, text: str) -> None:
        """See `Progress.note`."""
        self._bar.console.print(text, markup=False, soft_wrap=True)

    def work(self, what: str, done: int, total: int | None, now: bool = False) -> None:
        """Show a bar of its own below, until the work is over."""
        time_now = time.monotonic()
        pace = self._pace.text(what, done, total, time_now)
        over = done == total
        if self._work is None or self._work[0] != what:
            self._end_work()
            if over:
                return
            self.start()  # before training, the data is read
            self._work = what, self._bar.add_task(what, total=total)
        elif not (over or now) and time_now - self._drawn < _SECONDS_BETWEEN_STEPS:
            return
        self._drawn = time_now
        if over:
            self._end_work()
        else:
            text = work_text(what, done, total) + pace
            self._bar.update(self._work[1], completed=done, description=text)

    def stop(self) -> None:
        """See `Progress.stop`."""
        global _shown
        self._end_work()
        self._bar.stop()
        if _shown is self:
            _shown = None

    def _end_work(self) -> None:
        if self._work is not None:
            self._bar.remove_task(self._work[1])
            self._work = None

    def _draw(self, reading: Reading) -> None:
        description = "  ".join(reading_parts(reading, self.total_steps))
        if self.total_steps is not None:
            self._bar.update(self._task, completed=reading.step, description=description)
        elif reading.fraction is not None:
            self._bar.update(
                self._task, total=1.0, completed=reading.fraction, description=description
            )
        else:
            self._bar.update(self._task, description=description)


def _make_way_for_debuggers() -> None:
    """Let the bar leave the terminal for as long as pdb, or one built on it, waits for commands."""
    interact: Any = pdb.Pdb.interaction
    if hasattr(interact, "__wrapped__"):
        return

    @wraps(interact)
    def interaction(self: Any, *given: Any, **named: Any) -> Any:
        bar = _shown
        if bar is None:
            return interact(self, *given, **named)
        bar.pause()
        if isinstance(self.stdout, FileProxy):  # which would draw the bar again
            self.stdout = sys.stdout
        try:
            return interact(self, *given, **named)
        finally:
            bar.go_on(shows=not getattr(self, "quitting", False))

    pdb.Pdb.interaction = interaction
