"""Clock of the steps: seconds of their parts, and what all ranks agree on once a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import current_thread, get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from setpoint.resilience.signals import Abandoned

if TYPE_CHECKING:
    from setpoint.parallel.world import World
    from setpoint.resilience.signals import StopRequest
    from setpoint.shapes.logged import MetricLog

PARTS: tuple[str, ...] = (
    "data", "forward", "backward", "optimizer", "communication", "device", "evaluation", "save",
)  # fmt: skip
"""In the order of the columns of a row; the rest of the time is `other`."""
OF_SPAN = {
    **{part: part for part in PARTS},
    "pipeline": "backward",
    "clip": "optimizer",
    "optimizer step": "optimizer",
}
"""Part of the time that a span of a step counts as."""
UNTRACED = frozenset(("communication", "device", "clip", "evaluation", "save"))
"""Spans whose content a trace shows by itself, or that are empty in most steps."""
ON_DEVICE = frozenset(("forward", "backward", "optimizer"))
"""Parts that a GPU computes while the host goes on."""
WAITING = "waiting"
"""Waiting for other ranks within the parts above, which counts as communication."""
NOTHING = nullcontext()

Span = Callable[[str], AbstractContextManager[Any]]


class StepTimes:
    """Adds up the seconds of the parts of steps; what one part does inside another counts once.

    Calling it opens a span: `with times("forward"): ...`.

    Arguments:
        on_device: CUDA events measure the parts that a GPU computes, in place of the host's clock.
        is_on: measure at all.
        trace: names spans in the traces of a profiler.
        seconds: by part, since the start.
    """

    def __init__(self, is_on: bool = False, on_device: bool = False) -> None:
        self.is_on, self.on_device = is_on, on_device
        self.trace: Span = nullcontext
        self.seconds = dict.fromkeys((*PARTS, WAITING), 0.0)
        # The parts that are open with the events of their starts, the innermost last, and the last
        # reading of the host's clock.
        self._open: list[tuple[str, Any]] = []
        self._since = 0.0
        # Of parts that a GPU computes: name, that of the part around, events of start and end.
        self._events: list[tuple[str, str | None, Any, Any]] = []
        self._thread = get_ident()
        self._stream: Any = None

    def __call__(self, name: str) -> AbstractContextManager[Any]:
        """Open a span; without a part it is only traced, and `UNTRACED` ones are only measured."""
        part = OF_SPAN.get(name.partition(" of stage ")[0]) if self.is_on else None
        trace = nullcontext if name in UNTRACED else self.trace
        if part is None or (self.on_device and part == "device"):
            return trace(name)
        return _Part(self, part, None if trace is nullcontext else trace(name))

    def waiting(self, stream: Any = None) -> AbstractContextManager[Any]:
        """Open a span in which the parts that a GPU computes, or none, wait for other ranks.

        Of a GPU it is the stream that computes which waits, not the host.

        Arguments:
            stream: that is to wait; None: the one that is current.
        """
        part = self._open[-1][0] if self._open else None
        # Python's own threads, such as one that saves, wait beside the step; those of autograd,
        # which Python takes for dummies, do so in its place.
        if not (part is None or part in ON_DEVICE) or not (
            get_ident() == self._thread or current_thread().name.startswith("Dummy-")
        ):
            return NOTHING
        if not self.on_device:
            return _Part(self, "communication" if part is None else WAITING, None)
        if part is None or (stream or torch.cuda.current_stream()) != self._stream:
            return NOTHING
        return _Part(self, WAITING, None)

    def waits_until_end(self) -> None:
        """Begin to wait for other ranks until the open part ends, where that is backward."""
        if self._open and self._open[-1][0] == "backward":
            self.enter(WAITING)

    def read(self) -> dict[str, float]:
        """Seconds of each part so far; of a GPU, those of the events that have passed."""
        pending: list[tuple[str, str | None, Any, Any]] = []
        for event in self._events:
            part, around, start, end = event
            if not end.query():
                pending.append(event)
                continue
            seconds = start.elapsed_time(end) / 1e3
            self.seconds[part] += seconds
            if around is not None:
                self.seconds[around] -= seconds
        self._events = pending
        seconds = {part: self.seconds[part] for part in PARTS}
        seconds["communication"] += self.seconds[WAITING]
        return seconds

    def enter(self, part: str) -> None:
        """Begin a part."""
        now = time.perf_counter()
        if self._open and self._open[-1][1] is None:
            self.seconds[self._open[-1][0]] += now - self._since
        self._open.append((part, self._event(part) if self.on_device else None))
        self._since = now

    def leave(self, part: str) -> None:
        """End a part, and those that are open in it."""
        now = time.perf_counter()
        inner = ""
        while inner != part:
            inner, start = self._open.pop()
            if start is None:
                self.seconds[inner] += now - self._since
            else:
                around, timed = self._open[-1] if self._open else (None, None)
                within = None if timed is None else around
                self._events.append((inner, within, start, self._event(inner)))
            self._since = now

    def _event(self, part: str) -> Any:
        """An event on the stream of a part that a GPU computes; None for the others."""
        if part not in ON_DEVICE and part is not WAITING:
            return None
        if part is not WAITING:
            self._stream = torch.cuda.current_stream()
        event: Any = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class _Part:
    """An open span; leaner than a generator, as there are several in each micro-batch."""

    __slots__ = ("part", "times", "traced")

    def __init__(
        self, times: StepTimes, part: str, traced: AbstractContextManager[Any] | None
    ) -> None:
        self.times, self.part, self.traced = times, part, traced

    def __enter__(self) -> None:
        self.times.enter(self.part)
        if self.traced is not None:
            self.traced.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self.traced is not None:
            self.traced.__exit__(*error)
        self.times.leave(self.part)


@contextmanager
def measuring_waits(times: StepTimes) -> Iterator[None]:
    """Measure in the block what steps wait for other ranks, beside what they compute.

    Collectives that are called in Python, such as those of FSDP2 and between the stages of a
    pipeline, end in `Work.wait`; on a GPU, FSDP2 lets the stream that computes wait for events of
    the streams that communicate.
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


class StepSync:
    """Lets the ranks of a job stop, save and count seconds alike, by one collective a step.

    The time of a rank after it has reported counts for the next step, so that the position is the
    same on all ranks.

    Arguments:
        saves_now: a checkpoint was asked for in the last step, on any rank.
    """

    def __init__(
        self, world: World, stop: StopRequest, metrics: MetricLog, times: StepTimes
    ) -> None:
        self.world, self.stop, self.metrics, self.times = world, stop, metrics, times
        self.is_shared = world.size > 1
        self.saves_now = False
        # Stop flag after the last collective; None before the first.
        self._stopping: bool | None = None
        # By the clock: the start of the step, less the seconds before it that this rank has not
        # reported; the seconds that it has reported of the step; and their mean over all ranks.
        self._began = self._unshared = self._reported = self._mean = 0.0

    @property
    def is_stopping(self) -> bool:
        """True if a stop was requested, as far as all ranks know."""
        return bool(self._stopping) if self.is_shared else self.stop.requested

    @property
    def stop_requested(self) -> bool:
        """True to stop before the next step; all ranks give the same answer."""
        if self.is_shared and self._stopping is None:
            self._agree(self.world.any(self.stop.requested))
        return self.is_stopping

    def check(self) -> None:
        """Leave work that can be done again, on all ranks or on none.

        Raises:
            Abandoned: if a stop was asked for.
        """
        if not self.is_shared:
            self.stop.check()
            return
        self._agree(bool(self._stopping) or self.world.any(self.stop.requested))
        if self._stopping:
            raise Abandoned

    def begin_step(self) -> float:
        """Begin to count the seconds of a step.

        Returns:
            the time by `time.perf_counter`.
        """
        now = time.perf_counter()
        self._began = now - self._unshared
        return now

    def exchange(self) -> None:
        """Exchange stop and save requests, logged metrics and seconds with the other ranks."""
        self._reported = time.perf_counter() - self._began
        flags = (self.stop.requested, self.stop.saves_now, bool(self.metrics))
        with self.times("communication"):
            stops, saves, logs, seconds = self.world.sum_numbers(*flags, self._reported)
        self.saves_now, self.metrics.meets = saves > 0, logs > 0
        if self.saves_now:
            self.stop.answer_save()
        if self.is_shared:
            self._mean = seconds / self.world.size
            self._agree(stops > 0)

    def end_step(self) -> float:
        """The seconds that a step moves the position by, the mean over the ranks."""
        spent = time.perf_counter() - self._began
        if not self.is_shared:
            return spent
        self._unshared = spent - self._reported
        return self._mean

    def retake_step(self) -> None:
        """Let the seconds of a step that is taken again count for that."""
        self._unshared = time.perf_counter() - self._began

    def _agree(self, stopping: bool) -> None:
        """Note a stop request of any rank, and let all of them stop for the same reason.

        Arguments:
            stopping: the same on all ranks.
        """
        if stopping and not self._stopping:
            requests = self.world.all_of((self.stop.signal, self.stop.reason))
            signal, reason = next((sig, why) for sig, why in requests if sig is not None)
            self.stop.agree(signal, reason)
        self._stopping = stopping
