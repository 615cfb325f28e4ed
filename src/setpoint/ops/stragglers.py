"""Stragglers: ranks that are slower than the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import register_multi_grad_hook

from setpoint.resilience.config import Stragglers
from setpoint.train.loop import Callback, Loop, Phase
from setpoint.train.verdict import StepResult

if TYPE_CHECKING:
    from setpoint.track.jsonl import EventLog
    from setpoint.train.session import Run

PARTS = ("data", "forward", "backward", "waiting")
"""Parts of a step in seconds; the last includes waiting for other ranks."""


class StragglersCallback(Callback):
    """Compares the compute time of ranks, in one collective when due.

    A slow rank makes all others wait in the collectives of backward, so that steps take the same
    time everywhere, and even backward does. Own work is therefore the reading of data, forward, and
    backward until the last gradient is there, before it is summed. Where ranks hold shards of the
    weights, which are gathered on the way, there is no such moment, and all of backward counts; of
    the stages of a pipeline, none of it does.

    On a GPU, events on its stream measure forward and backward, so that nothing waits for them.
    """

    phase = Phase.STEP

    events: EventLog
    note: Callable[[str], None]
    """Function that shows a line."""

    def __init__(self, config: Stragglers) -> None:
        self.config = config
        self.seconds: dict[str, float] = dict.fromkeys(PARTS[1:3], 0.0)
        self.steps = 0
        self.stepping = self.waited = 0.0
        self.marked: Any = None
        self.on_gpu = False
        self._undo = ExitStack()
        self._spans: list[tuple[str, Any, Any]] = []

    def opened(self, run: Run, stack: ExitStack) -> None:
        """Store the run to report to."""
        self.events, self.note = run.events, run.progress.note

    def start(self, loop: Loop) -> None:
        """Begin to measure."""
        self.on_gpu = loop.components.device.type == "cuda"
        inner, engine = loop.engine.span, loop.engine
        weights = [weight for weight in loop.components.model.parameters() if weight.requires_grad]
        if weights:
            hook = register_multi_grad_hook(weights, self._last_gradient)
            self._undo.callback(hook.remove)
        engine.span = lambda name: self._span(inner, name)

        def restore() -> None:
            engine.span = inner

        self._undo.callback(restore)
        self.stepping, self.waited = loop.stepping, loop.waited

    def close(self, loop: Loop) -> None:
        """Measure no more."""
        self._undo.close()

    def needs_result(self, loop: Loop) -> bool:
        """True if the ranks are compared."""
        return loop.is_due(self.config.every)

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Compare the ranks if due."""
        self.steps += 1
        if self.needs_result(loop):
            self.compare(loop)

    def compare(self, loop: Loop) -> None:
        """Write an event and a line for slow ranks."""
        world = loop.components.world
        means = [seconds / self.steps for seconds in self._take(loop)]
        table = torch.zeros(world.size, len(PARTS), dtype=torch.float64, device=world.device)
        table[world.rank] = torch.tensor(means, dtype=torch.float64)
        world.sum(table)
        self.steps = 0
        ranks = table.tolist()
        work = [sum(parts[:-1]) for parts in ranks]
        middle = median(work)
        limit = self.config.factor * middle
        slow = [rank for rank, spent in enumerate(work) if spent > limit > 0]
        if not slow:
            return
        step = loop.position.step
        facts = [
            {
                "rank": rank,
                **{name: round(s, 6) for name, s in zip(PARTS, ranks[rank], strict=True)},
            }
            for rank in slow
        ]
        self.events.write("stragglers", step=step, median=round(middle, 6), ranks=facts)
        for rank in slow:
            parts = ", ".join(f"{n} {s:.3g} s" for n, s in zip(PARTS, ranks[rank], strict=True))
            self.note(
                f"step {step}: rank {rank} is slow: {work[rank]:.3g} s of its own work in a step, "
                f"{work[rank] / middle:.2f} times the median of all ranks ({parts})"
            )

    def _take(self, loop: Loop) -> list[float]:
        """Seconds of the parts since the last comparison."""
        if self.on_gpu:
            self._read_events()
        total, data = loop.stepping - self.stepping, loop.waited - self.waited
        self.stepping, self.waited = loop.stepping, loop.waited
        forward, backward = self.seconds["forward"], self.seconds["backward"]
        self.seconds = dict.fromkeys(self.seconds, 0.0)
        return [data, forward, backward, max(0.0, total - data - forward - backward)]

    @contextmanager
    def _span(
        self, inner: Callable[[str], AbstractContextManager[Any]], name: str
    ) -> Iterator[None]:
        part = name.partition(" of stage ")[0]
        if part not in self.seconds:
            with inner(name):
                yield
            return
        began, self.marked = self._now(), None
        with inner(name):
            yield
        end = self.marked if part == "backward" and self.marked is not None else self._now()
        if self.on_gpu:
            self._spans.append((part, began, end))
        else:
            self.seconds[part] += end - began

    def _last_gradient(self, _: Any) -> None:
        self.marked = self._now()

    def _now(self) -> Any:
        if not self.on_gpu:
            return time.perf_counter()
        event: Any = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _read_events(self) -> None:
        """Add up the CUDA events of the finished step."""
        for part, began, end in self._spans:
            end.synchronize()
            self.seconds[part] += began.elapsed_time(end) / 1e3
        self._spans.clear()
