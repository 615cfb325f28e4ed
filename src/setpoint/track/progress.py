"""What people see while a run trains: a live bar, plain lines, or nothing."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Protocol, Self, TextIO

from .console import is_terminal, short_count, short_time


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known at one moment of a run; None is not shown.

    Arguments:
        loss: mean over the steps since the last reading, in nats per token.
        seconds_left: until the end as far as can be estimated.
        mfu: share of the hardware's peak, between 0 and 1.
        fraction: how much of the run is done, between 0 and 1.
    """

    step: int
    loss: float | None = None
    tokens_per_second: float | None = None
    seconds_left: float | None = None
    mfu: float | None = None
    fraction: float | None = None


class Work(Protocol):
    """Called with how far a piece of work beside the steps is, as `Progress.work` is."""

    def __call__(self, what: str, done: int, total: int | None, now: bool = False) -> None:
        """See `Progress.work`."""
        ...


SECONDS_BEFORE_LINES, SECONDS_BETWEEN_LINES, SECONDS_BEFORE_PACE = 10.0, 5.0, 1.0


def no_work(what: str, done: int, total: int | None, now: bool = False) -> None:
    """Show nothing of a piece of work.

    Arguments:
        what: see `Progress.work`.
        done: see `Progress.work`.
        total: see `Progress.work`.
        now: see `Progress.work`.
    """


class Progress:
    """Shows nothing; the base of those that do. Use as a context."""

    def start(self) -> None:
        """Begin to show."""

    def advance(self, step: int) -> None:
        """Tell that a step is done; cheap enough for every step."""

    def show(self, reading: Reading) -> None:
        """Show a row of metrics."""

    def note(self, text: str) -> None:
        """Show a line that stays: an evaluation, a saved checkpoint."""

    def work(self, what: str, done: int, total: int | None, now: bool = False) -> None:
        """Show the progress of work other than steps; cheap enough for every batch.

        Arguments:
            what: the work and its unit, such as `evaluating held_out, sequences`.
            total: how much there is; None where that is not known. It is over when `done` is this.
            now: whether it is shown at once, because the next call may be long in coming.
        """

    def stop(self) -> None:
        """Leave the terminal as it should be; may be called twice."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class LineProgress(Progress):
    """One line for each row of metrics, for logs and pipes.

    Arguments:
        total_steps: after which the run ends, or None if something else ends it.
    """

    def __init__(self, total_steps: int | None, stream: TextIO) -> None:
        self.total_steps = total_steps
        self.stream = stream
        self._work: tuple[str, float] | None = None  # what is shown, and when it is next
        self._pace = Pace()

    def show(self, reading: Reading) -> None:
        """See `Progress.show`."""
        print("  ".join(reading_parts(reading, self.total_steps)), file=self.stream, flush=True)

    def note(self, text: str) -> None:
        """See `Progress.note`."""
        print(text, file=self.stream, flush=True)

    def work(self, what: str, done: int, total: int | None, now: bool = False) -> None:
        """Print a line every few seconds of a long piece of work; nothing of a short one."""
        time_now = time.monotonic()
        pace = self._pace.text(what, done, total, time_now)
        if not now and (self._work is None or self._work[0] != what):
            self._work = what, time_now + SECONDS_BEFORE_LINES
        elif done == total:
            self._work = None
        elif now or self._work is None or time_now >= self._work[1]:
            self._work = what, time_now + SECONDS_BETWEEN_LINES
            print(work_text(what, done, total) + pace, file=self.stream, flush=True)


class WorkLine(Progress):
    """One line of a terminal with the progress of work, for commands that do not train."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._next = 0.0
        self._pace = Pace()

    def work(self, what: str, done: int, total: int | None, now: bool = False) -> None:
        """Write the line anew, at most ten times a second, and remove it at the end."""
        time_now = time.monotonic()
        pace = self._pace.text(what, done, total, time_now)
        if done == total:
            self.stop()
        elif now or time_now >= self._next:
            self._next = time_now + 0.1
            text = work_text(what, done, total) + pace
            print(f"\r{text}\x1b[K", end="", file=self.stream, flush=True)

    def note(self, text: str) -> None:
        """See `Progress.note`."""
        self.stop()
        print(text, file=self.stream, flush=True)

    def stop(self) -> None:
        """See `Progress.stop`."""
        if self._next:
            self._next = 0.0
            print("\r\x1b[K", end="", file=self.stream, flush=True)


def make_work_progress(stream: TextIO | None = None) -> Progress:
    """Show how far the work of a command is, where its results are not printed.

    Returns:
        a line of its own on a terminal, and a line every few seconds elsewhere.
    """
    output = sys.stderr if stream is None else stream
    return WorkLine(output) if is_terminal(output) else LineProgress(None, output)


class Pace:
    """How fast pieces of work go, from what is told of them."""

    def __init__(self) -> None:
        self._first: tuple[str, float, int] | None = None

    def text(self, what: str, done: int, total: int | None, now: float) -> str:
        """The pace, and the time that is left where it can be known: `, 1.2M/s, 0:42 left`.

        Arguments:
            now: the time in seconds.
        """
        if self._first is None or self._first[0] != what or done < self._first[2]:
            self._first = what, now, done
        _, begin, before = self._first
        seconds = now - begin
        if seconds < SECONDS_BEFORE_PACE or done <= before:
            return ""
        pace = (done - before) / seconds
        left = f", {short_time((total - done) / pace)} left" if total else ""
        return f", {short_count(round(pace))}/s{left}"


def work_text(what: str, done: int, total: int | None) -> str:
    """Format how far a piece of work is.

    Arguments:
        what: see `Progress.work`.
        done: see `Progress.work`.
        total: see `Progress.work`.

    Returns:
        for instance `evaluating held_out, sequences: 128/640 (20%)`.
    """
    if not total:
        return f"{what}: {short_count(done)}"
    return f"{what}: {short_count(done)}/{short_count(total)} ({done / total:.0%})"


def reading_parts(reading: Reading, total_steps: int | None) -> list[str]:
    """Format a reading.

    Arguments:
        total_steps: after which the run ends, or None.

    Returns:
        for instance `step 20/300`, `loss 2.8125`, `16.1k tokens/s`, `MFU 31.2%`, `0:42 left`.
    """
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
