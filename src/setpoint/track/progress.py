"""Progress display for a run and for other work: a live bar, plain lines, or nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, Self, TextIO

from setpoint.config import RunError
from setpoint.files.atomic import not_linked

from .console import is_terminal, now, short_count, short_time

if TYPE_CHECKING:
    from rich.progress import TaskID


@dataclass(frozen=True, slots=True)
class Reading:
    """Metrics to show; those that are None are omitted.

    Arguments:
        loss: mean over the steps since the last reading, in nats per token.
        seconds_left: estimated time to the end.
        mfu: fraction of the hardware's peak, between 0 and 1.
        fraction: completed fraction of the run, between 0 and 1.
    """

    step: int
    loss: float | None = None
    tokens_per_second: float | None = None
    seconds_left: float | None = None
    mfu: float | None = None
    fraction: float | None = None


SECONDS_BEFORE_LINES, SECONDS_BETWEEN_LINES, SECONDS_BEFORE_PACE = 10.0, 5.0, 1.0
SECONDS_BETWEEN_FRAMES = 0.1
_shown: BarProgress | None = None
"""The bar on the terminal."""


class Progress:
    """Base class of the displays, which shows nothing; a context manager."""

    moves = False
    """True if `advance` does something."""

    def start(self) -> None:
        """Start the display."""

    def advance(self, step: int) -> None:
        """Show that a step is done; cheap enough to be called at every step."""

    def show(self, reading: Reading) -> None:
        """Show a row of metrics."""

    def note(self, text: str) -> None:
        """Show a permanent line, such as an evaluation or a saved checkpoint."""

    def work(self, label: str, done: int, total: int | None, now: bool = False) -> None:
        """Show the progress of work other than steps; cheap enough to be called at every batch.

        Arguments:
            label: the work and its unit, such as `evaluating held_out, sequences`.
            total: the total amount, at which the work is complete; None if unknown.
            now: whether to show it immediately, because the next call may be late.
        """

    def stop(self) -> None:
        """Restore the terminal; may be called twice."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class LineProgress(Progress):
    """One line for each row of metrics, for logs and pipes."""

    def __init__(self, total_steps: int | None, stream: TextIO) -> None:
        self.total_steps = total_steps
        self.stream = stream
        self._work: tuple[str, float] | None = None  # the text, and the time of the next one
        self._pace = Pace()

    def show(self, reading: Reading) -> None:
        print("  ".join(reading_parts(reading, self.total_steps)), file=self.stream, flush=True)

    def note(self, text: str) -> None:
        print(text, file=self.stream, flush=True)

    def work(self, label: str, done: int, total: int | None, now: bool = False) -> None:
        """Print a line every few seconds, but only for long work."""
        time_now = time.monotonic()
        pace = self._pace.text(label, done, total, time_now)
        if not now and (self._work is None or self._work[0] != label):
            self._work = label, time_now + SECONDS_BEFORE_LINES
        elif done == total:
            self._work = None
        elif now or self._work is None or time_now >= self._work[1]:
            self._work = label, time_now + SECONDS_BETWEEN_LINES
            print(work_text(label, done, total) + pace, file=self.stream, flush=True)


class WorkLine(Progress):
    """Single-line progress on a terminal, for commands that do not train."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._next = 0.0
        self._pace = Pace()

    def work(self, label: str, done: int, total: int | None, now: bool = False) -> None:
        """Update the line, at most ten times a second, and remove it when the work is done."""
        time_now = time.monotonic()
        pace = self._pace.text(label, done, total, time_now)
        if done == total:
            self.stop()
        elif now or time_now >= self._next:
            self._next = time_now + SECONDS_BETWEEN_FRAMES
            text = work_text(label, done, total) + pace
            print(f"\r{text}\x1b[K", end="", file=self.stream, flush=True)

    def note(self, text: str) -> None:
        self.stop()
        print(text, file=self.stream, flush=True)

    def stop(self) -> None:
        if self._next:
            self._next = 0.0
            print("\r\x1b[K", end="", file=self.stream, flush=True)


def make_work_progress(stream: TextIO | None = None) -> Progress:
    """Make a display of a command's progress on standard error.

    A terminal has one updated line, and everything else a line every few seconds.
    """
    output = sys.stderr if stream is None else stream
    return WorkLine(output) if is_terminal(output) else LineProgress(None, output)


class Pace:
    """Speed of work, from the calls of `Progress.work`."""

    def __init__(self) -> None:
        self._first: tuple[str, float, int] | None = None

    def text(self, label: str, done: int, total: int | None, now: float) -> str:
        """The speed, and the time left if known: `, 1.2M/s, 0:42 left`."""
        if self._first is None or self._first[0] != label or done < self._first[2]:
            self._first = label, now, done
        _, begin, before = self._first
        seconds = now - begin
        if seconds < SECONDS_BEFORE_PACE or done <= before:
            return ""
        pace = (done - before) / seconds
        left = f", {short_time((total - done) / pace)} left" if total else ""
        return f", {short_count(round(pace))}/s{left}"


def work_text(label: str, done: int, total: int | None) -> str:
    """Format the progress of work, such as `evaluating held_out, sequences: 128/640 (20%)`."""
    if not total:
        return f"{label}: {short_count(done)}"
    return f"{label}: {short_count(done)}/{short_count(total)} ({done / total:.0%})"


def reading_parts(reading: Reading, total_steps: int | None) -> list[str]:
    """The parts of a reading: `step 20/300`, `loss 2.8125`, `16.1k tokens/s`, `0:42 left`."""
    total = "" if total_steps is None else f"/{total_steps}"
    parts = [f"step {reading.step}{total}"]
    if reading.loss is not None:
        parts.append(f"loss {reading.loss:.4f}")
    if reading.tokens_per_second is not None:
        parts.append(f"{short_count(reading.tokens_per_second)} tokens/s")
    if reading.mfu is not None:
        parts.append(f"MFU {reading.mfu:.1%}")
    if reading.seconds_left is not None:
        parts.append(f"{short_time(reading.seconds_left)} left")
    return parts


class BarProgress(Progress):
    """A progress bar with the last reading; notes are printed above it.

    Without `total_steps` it follows `Reading.fraction`.
    """

    moves = True

    def __init__(self, total_steps: int | None, stream: TextIO) -> None:
        from rich.console import Console  # rich takes a while to import
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self.total_steps = total_steps
        # Four frames a second: drawing takes the GIL from the training loop.
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
        # Number of nested debuggers that use the terminal.
        self._paused = 0

    def start(self) -> None:
        global _shown
        if not self._paused:
            _shown = self
            _make_way_for_debuggers()
            self._bar.start()

    def pause(self) -> None:
        """Give the terminal to a debugger."""
        self._paused += 1
        self._bar.stop()

    def go_on(self, shows: bool) -> None:
        """Take the terminal back, and draw the bar again if `shows`."""
        self._paused -= 1
        if shows:
            self.start()

    def advance(self, step: int) -> None:
        now = time.monotonic()
        if now - self._drawn < SECONDS_BETWEEN_FRAMES:
            return
        self._drawn = now
        read = self._reading
        self._draw(Reading(step, read.loss, read.tokens_per_second, read.seconds_left, read.mfu))

    def show(self, reading: Reading) -> None:
        self._reading = reading
        self._draw(reading)

    def note(self, text: str) -> None:
        self._bar.console.print(text, markup=False, soft_wrap=True)

    def work(self, label: str, done: int, total: int | None, now: bool = False) -> None:
        """Show a separate bar below the main one until the work is done."""
        time_now = time.monotonic()
        pace = self._pace.text(label, done, total, time_now)
        finished = done == total
        if self._work is None or self._work[0] != label:
            self._end_work()
            if finished:
                return
            self.start()  # the data is read before training
            self._work = label, self._bar.add_task(label, total=total)
        elif not (finished or now) and time_now - self._drawn < SECONDS_BETWEEN_FRAMES:
            return
        self._drawn = time_now
        if finished:
            self._end_work()
        else:
            text = work_text(label, done, total) + pace
            self._bar.update(self._work[1], completed=done, description=text)

    def stop(self) -> None:
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
    """Hide the bar while pdb, or a debugger based on it, waits for commands."""
    import pdb

    from rich.file_proxy import FileProxy

    interact: Any = pdb.Pdb.interaction
    if hasattr(interact, "__wrapped__"):
        return

    @wraps(interact)
    def interaction(self: Any, *given: Any, **named: Any) -> Any:
        bar = _shown
        if bar is None:
            return interact(self, *given, **named)
        bar.pause()
        if isinstance(self.stdout, FileProxy):  # a FileProxy would draw the bar again
            self.stdout = sys.stdout
        try:
            return interact(self, *given, **named)
        finally:
            bar.go_on(shows=not getattr(self, "quitting", False))

    pdb.Pdb.interaction = interaction


class LoggedProgress(Progress):
    """Forwards to another display, and logs each line with the time to a file.

    If the reader of the output exits, as `| head` does, the run continues and the file contains the
    rest.

    Arguments:
        path: the log file, which is appended to.

    Raises:
        RunError: the file cannot be written.
    """

    def __init__(self, inner: Progress, path: Path, total_steps: int | None) -> None:
        self.inner, self.moves = inner, inner.moves
        self.path = path
        self.total_steps = total_steps
        self._lock = Lock()
        try:
            # Closed by `close`.
            self._file = open(path, "a", 1, "utf-8", opener=not_linked)  # noqa: SIM115
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error.strerror}") from error

    def start(self) -> None:
        self._show(lambda inner: inner.start())

    def advance(self, step: int) -> None:
        self._show(lambda inner: inner.advance(step))

    def show(self, reading: Reading) -> None:
        self.log("  ".join(reading_parts(reading, self.total_steps)))
        self._show(lambda inner: inner.show(reading))

    def note(self, text: str) -> None:
        self.log(text)
        self._show(lambda inner: inner.note(text))

    def log(self, text: str) -> None:
        """Write a line only to the file.

        Raises:
            RunError: the disk is full or fails.
        """
        moment = f"{now().partition('.')[0]}Z"
        try:
            with self._lock:
                self._file.write(f"{moment} {text}\n")
        except OSError as error:
            raise RunError(f"{self.path} cannot be written: {error.strerror}") from error

    def work(self, label: str, done: int, total: int | None, now: bool = False) -> None:
        """Show the progress of work; the file gets only permanent lines."""
        self._show(lambda inner: inner.work(label, done, total, now))

    def stop(self) -> None:
        self._show(lambda inner: inner.stop())

    def close(self) -> None:
        """Close the file, which is complete even without this call."""
        with suppress(OSError):  # of a line already refused when written
            self._file.close()

    def _show(self, act: Callable[[Progress], None]) -> None:
        try:
            act(self.inner)
        except BrokenPipeError:
            self.inner = Progress()


def make_progress(
    mode: Literal["auto", "bar", "lines", "none"],
    *,
    total_steps: int | None,
    stream: TextIO | None = None,
) -> Progress:
    """Create the display of a run; rich is imported only for the bar.

    Arguments:
        mode: `tracking.progress`; `auto` is a bar on a terminal and lines elsewhere.
        total_steps: the step at which the run ends, or None if something else ends it.
        stream: output; standard output by default.
    """
    output: TextIO = sys.stdout if stream is None else stream
    if mode == "none":
        return Progress()
    if mode == "bar" or (mode == "auto" and is_terminal(output)):
        return BarProgress(total_steps, output)
    return LineProgress(total_steps, output)
