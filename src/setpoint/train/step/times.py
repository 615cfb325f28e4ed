"""How long the parts of steps take."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

PARTS: tuple[str, ...] = (
    "data", "forward", "backward", "optimizer", "communication", "device", "evaluation", "save",
)  # fmt: skip
"""In the order in which a row has them; what is in none of them is `other`."""
OF_SPAN = {
    **{part: part for part in PARTS},
    "pipeline": "backward",
    "clip": "optimizer",
    "optimizer step": "optimizer",
}
"""The part that a span of a step belongs to."""
UNTRACED = frozenset(("communication", "device", "clip", "evaluation", "save"))
"""Spans that hold what a trace shows by itself, or nothing in most steps."""
ON_DEVICE = frozenset(("forward", "backward", "optimizer"))
"""Parts that a GPU computes while the host goes on."""

Span = Callable[[str], AbstractContextManager[Any]]


class StepTimes:
    """Adds up the seconds of the parts of steps; what one part does inside another counts once.

    Calling it opens a span: `with times("forward"): ...`.

    Arguments:
        on_device: whether CUDA events measure what a GPU computes, in place of the host's clock.
        is_on: whether anything is measured.
        trace: names spans in the traces of a profiler.
        seconds: by part, since this was made.
    """

    def __init__(self, is_on: bool = False, on_device: bool = False) -> None:
        self.is_on, self.on_device = is_on, on_device
        self.trace: Span = nullcontext
        self.seconds = dict.fromkeys(PARTS, 0.0)
        # The parts that are open, the innermost last, and when the host's clock was last read.
        self._open: list[str] = []
        self._since = 0.0
        self._events: list[tuple[str, str | None, Any, Any]] = []

    def __call__(self, name: str) -> AbstractContextManager[Any]:
        """Open a span; one that belongs to no part is only traced, one that is no work is not."""
        part = OF_SPAN.get(name.partition(" of stage ")[0]) if self.is_on else None
        trace = nullcontext if name in UNTRACED else self.trace
        if part is None or (self.on_device and part == "device"):
            return trace(name)
        return _Part(self, part, None if trace is nullcontext else trace(name))

    def read(self) -> dict[str, float]:
        """The seconds of each part so far; of a GPU, those of what it has finished."""
        waiting: list[tuple[str, str | None, Any, Any]] = []
        for each in self._events:
            part, around, start, end = each
            if not end.query():
                waiting.append(each)
                continue
            seconds = start.elapsed_time(end) / 1e3
            self.seconds[part] += seconds
            if around is not None:
                self.seconds[around] -= seconds
        self._events = waiting
        return dict(self.seconds)

    def enter(self, part: str) -> Any:
        """Begin a part; returns the event of its start, where events measure it."""
        now = time.perf_counter()
        if self._open:
            self._add(self._open[-1], now)
        self._open.append(part)
        self._since = now
        return self._mark(part)

    def leave(self, part: str, start: Any) -> None:
        """End a part."""
        now = time.perf_counter()
        self._open.pop()
        if start is None:
            self._add(part, now)
        else:
            around = self._open[-1] if self._open and self._open[-1] in ON_DEVICE else None
            self._events.append((part, around, start, self._mark(part)))
        self._since = now

    def _add(self, part: str, now: float) -> None:
        if not (self.on_device and part in ON_DEVICE):
            self.seconds[part] += now - self._since

    def _mark(self, part: str) -> Any:
        if not (self.on_device and part in ON_DEVICE):
            return None
        event: Any = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class _Part:
    """An open span; leaner than a generator, as there are several in each micro-batch."""

    __slots__ = ("part", "start", "times", "traced")

    def __init__(
        self, times: StepTimes, part: str, traced: AbstractContextManager[Any] | None
    ) -> None:
        self.times, self.part, self.traced = times, part, traced

    def __enter__(self) -> None:
        self.start = self.times.enter(self.part)
        if self.traced is not None:
            self.traced.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self.traced is not None:
            self.traced.__exit__(*error)
        self.times.leave(self.part, self.start)
