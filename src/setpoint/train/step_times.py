"""Step times by category, including waits for other ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import current_thread, get_ident
from typing import Any, NamedTuple

import torch
from torch import distributed

PARTS: tuple[str, ...] = (
    "data", "forward", "backward", "optimizer", "communication", "device", "evaluation", "save",
)  # fmt: skip
"""Time categories in the order of the columns; the rest of the time is `other`."""
OF_SPAN = {
    **{part: part for part in PARTS},
    "pipeline": "backward",
    "clip": "optimizer",
    "optimizer step": "optimizer",
}
"""Time category of each span of a step."""
UNTRACED = frozenset(("communication", "device", "clip", "evaluation", "save"))
"""Spans omitted from traces: visible by their content, or mostly empty."""
ON_DEVICE = frozenset(("forward", "backward", "optimizer"))
"""Categories computed asynchronously on a GPU."""
WAITING = "waiting"
"""Waits for other ranks within these categories, counted as communication."""
NOTHING = nullcontext()

Span = Callable[[str], AbstractContextManager[Any]]


class _Span(NamedTuple):
    """An open span, with the CUDA event of its start; see `StepTimes.enter`."""

    part: str
    start: Any
    trace: AbstractContextManager[Any] | None


class StepTimes:
    """Accumulates the seconds of steps by category; nested spans count once.

    Calling it opens a span: `with times("forward"): ...`.

    Arguments:
        on_device: whether CUDA events, instead of the host's clock, measure the parts computed on a
            GPU.
        is_on: whether to measure.
        trace: names spans in profiler traces.
        seconds: by part, since the start.
    """

    def __init__(self, is_on: bool = False, on_device: bool = False) -> None:
        self.is_on, self.on_device = is_on, on_device
        self.trace: Span = nullcontext
        self.seconds = dict.fromkeys((*PARTS, WAITING), 0.0)
        # The open parts, the innermost last, and the last reading of the host's clock.
        self._open: list[_Span] = []
        self._since = 0.0
        # For parts that a GPU computes: name, name of the enclosing part, events of start and end.
        self._events: list[tuple[str, str | None, Any, Any]] = []
        self._thread = get_ident()
        self._stream: Any = None

    def __call__(self, name: str) -> AbstractContextManager[Any]:
        """Open a span; without a category it is only traced, and `UNTRACED` ones are only timed."""
        part = OF_SPAN.get(name.partition(" of stage ")[0]) if self.is_on else None
        trace = nullcontext if name in UNTRACED else self.trace
        if part is None or (self.on_device and part == "device"):
            return trace(name)
        self.enter(part, NOTHING if trace is nullcontext else trace(name))
        return self

    def __enter__(self) -> None:
        trace = self._open[-1].trace
        assert trace is not None
        trace.__enter__()

    def __exit__(self, *error: Any) -> None:
        """End the innermost span, and any wait inside it."""
        trace = None
        while trace is None:
            part, start, trace = self._open.pop()
            if trace is not None:
                trace.__exit__(*error)
            now = time.perf_counter()
            if start is None:
                self.seconds[part] += now - self._since
            else:
                outer = self._open[-1] if self._open else None
                within = None if outer is None or outer.start is None else outer.part
                self._events.append((part, within, start, self._event(part)))
            self._since = now

    def waiting(self, stream: Any = None) -> AbstractContextManager[Any]:
        """Open a span in which GPU parts, or none, wait for other ranks.

        On a GPU, it is the computing stream that waits, not the host.

        Arguments:
            stream: the waiting stream; None: the current one.
        """
        part = self._open[-1].part if self._open else None
        # Python's own threads, such as one that saves, wait concurrently with the step; those of
        # autograd, which are dummy threads for Python, wait as part of it.
        if not (part is None or part in ON_DEVICE) or not (
            get_ident() == self._thread or current_thread().name.startswith("Dummy-")
        ):
            return NOTHING
        if self.on_device and (
            part is None or (stream or torch.cuda.current_stream()) != self._stream
        ):
            return NOTHING
        self.enter("communication" if part is None else WAITING, NOTHING)
        return self

    def waits_until_end(self) -> None:
        """Count the rest of an open backward span as waiting for other ranks."""
        if self._open and self._open[-1].part == "backward":
            self.enter(WAITING, None)

    def read(self) -> dict[str, float]:
        """Seconds by category so far; on a GPU, those of completed events."""
        pending: list[tuple[str, str | None, Any, Any]] = []
        for event in self._events:
            part, outer, start, end = event
            if not end.query():
                pending.append(event)
                continue
            seconds = start.elapsed_time(end) / 1e3
            self.seconds[part] += seconds
            if outer is not None:
                self.seconds[outer] -= seconds
        self._events = pending
        seconds = {part: self.seconds[part] for part in PARTS}
        seconds["communication"] += self.seconds[WAITING]
        return seconds

    def enter(self, part: str, trace: AbstractContextManager[Any] | None) -> None:
        """Open a span of a category.

        Arguments:
            trace: name in a profile; None: the span ends with the enclosing one.
        """
        now = time.perf_counter()
        if self._open and self._open[-1].start is None:
            self.seconds[self._open[-1].part] += now - self._since
        self._open.append(_Span(part, self._event(part) if self.on_device else None, trace))
        self._since = now

    def _event(self, part: str) -> Any:
        """Record a CUDA event for a category computed on a GPU; None for others."""
        if part not in ON_DEVICE and part is not WAITING:
            return None
        if part is not WAITING:
            self._stream = torch.cuda.current_stream()
        event: Any = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


@contextmanager
def measuring_waits(times: StepTimes) -> Iterator[None]:
    """Separately measure the time that steps wait for other ranks, within the block.

    Collectives called in Python, such as those of FSDP2 and between the stages of a pipeline, end
    in `Work.wait`; on a GPU, FSDP2 makes the computing stream wait for events of the communicating
    streams.
    """
    work: Any = distributed.Work
    streams: Any = torch.cuda.Stream
    wait, wait_event = work.wait, streams.wait_event

    def timed_wait(self: Any, *given: Any, **named: Any) -> Any:
        with times.waiting():
            return wait(self, *given, **named)

    def timed_wait_event(stream: Any, event: Any) -> None:
        with times.waiting(stream):
            wait_event(stream, event)

    work.wait = timed_wait
    if times.on_device:
        streams.wait_event = timed_wait_event
    try:
        yield
    finally:
        work.wait, streams.wait_event = wait, wait_event
