"""Slow steps: waiting for data, and ranks slower than the others."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import register_multi_grad_hook

from setpoint.data.loader import Spent
from setpoint.resilience.config import Stragglers
from setpoint.train.loop import Callback, Loop, Phase
from setpoint.train.verdict import StepResult

if TYPE_CHECKING:
    from setpoint.data.config import Loader
    from setpoint.track.jsonl import EventLog
    from setpoint.train.session import Run

TOO_MUCH = 0.05
"""Minimum share of step time spent waiting for data for a warning."""
STEPS, SECONDS = 20, 10.0
"""Minimum number of steps, and seconds, of a measured interval."""
CHEAP = 1e-3
"""Cost of taking a micro-batch from a worker in seconds."""


class DataWaitCallback(Callback):
    """Writes an event for each interval with too much waiting, and a line about the first one.

    The first step of a session, which starts the workers, is not counted.
    """

    phase, min_interval = Phase.OBSERVE, SECONDS

    def __init__(self) -> None:
        self.step = 0
        self.stepping = self.waited = 0.0
        self.spent = Spent()
        self.warned = False

    def opened(self, run: Run, stack: ExitStack) -> None:
        """Store the run to report to."""
        self.section = run.job.data.loader
        self.events, self.note = run.events, run.progress.note

    def after_first_step(self, loop: Loop, result: StepResult) -> None:
        """Begin an interval."""
        self._begin(loop)

    def rewound(self, loop: Loop) -> None:
        """Begin an interval."""
        self._begin(loop)

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Examine the interval up to this step, if it is long enough."""
        seconds, waited = loop.stepping - self.stepping, loop.waited - self.waited
        if loop.position.step - self.step < STEPS or seconds < SECONDS:
            return
        if waited >= TOO_MUCH * seconds:
            self._warn(loop, waited, seconds)
        self._begin(loop)

    def _begin(self, loop: Loop) -> None:
        self.step, self.stepping, self.waited = loop.position.step, loop.stepping, loop.waited
        self.spent = replace(loop.components.feed.spent)

    def _warn(self, loop: Loop, waited: float, seconds: float) -> None:
        step, share = loop.position.step, waited / seconds
        steps = step - self.step
        spent = loop.components.feed.spent.since(self.spent)
        self.events.write(
            "data_wait",
            step=step,
            steps=steps,
            share=share,
            batches=spent.batches,
            planning=spent.planning,
            making=spent.making,
        )
        if not self.warned:
            change = advice(self.section, spent, waited, seconds)
            self.note(
                f"step {step}: {share:.0%} of the last {steps} steps were spent waiting for "
                f"data; {change}"
            )
            self.warned = True


def advice(section: Loader, spent: Spent, waited: float, seconds: float) -> str:
    """Suggest a change to the loader, based on the costs of the batches in an interval.

    Arguments:
        waited: seconds of waiting for data, out of the `seconds` of the steps.
    """
    batches = max(spent.batches, 1)
    making = spent.making / batches
    if spent.planning > waited / 2:
        return (
            f"{spent.planning / batches:.2g} s of each micro-batch went into selecting its rows, "
            f"which workers cannot do: prepare streamed data, or lower data.packing.group_size"
        )
    took = f"building a micro-batch takes {making * 1e3:.3g} ms"
    if section.workers and making <= waited / batches:
        return f"{took}, less than taking it from a worker: set data.loader.workers to 0"
    if making < CHEAP:
        return (
            f"{took}, less than taking it from a worker would: raise batch.micro_size rather than "
            "data.loader.workers"
        )
    computing = max(seconds - waited, 1e-9) / batches
    needed, cores = math.ceil(making / computing), os.cpu_count() or 1
    if needed <= section.workers:
        return f"{took}, sometimes more: raise data.loader.prefetch from {section.prefetch}"
    limit = f" (there are {cores} cores: more help only if workers wait for disk or network)"
    return (
        f"{took} and computing it {computing * 1e3:.3g} ms: raise data.loader.workers from "
        f"{section.workers} to {needed}{limit * (needed > cores)}"
    )


PARTS = ("data", "forward", "backward", "waiting")
"""Parts of a step in seconds; the last includes waiting for other ranks."""


class StragglersCallback(Callback):
    """Compares the compute time of ranks, in one collective when due.

    A slow rank makes all others wait in the collectives of the backward pass, so that steps, and
    even the backward pass, take the same time on all ranks. The compute time therefore consists of
    reading data, the forward pass, and the backward pass up to the last gradient, before it is
    summed. With sharded weights, which are gathered during the pass, that moment does not exist,
    and the whole backward pass counts; with pipeline stages, none of it does.

    On a GPU, events on its stream measure forward and backward, without synchronization.
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
        """Start measuring."""
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
        """Stop measuring."""
        self._undo.close()

    def needs_result(self, loop: Loop) -> bool:
        """True if the ranks are compared after this step."""
        return loop.is_due(self.config.every)

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Compare the ranks if due."""
        self.steps += 1
        if self.needs_result(loop):
            self.compare(loop)

    def compare(self, loop: Loop) -> None:
        """Write an event and a line about slow ranks."""
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
                f"step {step}: rank {rank} is slow: {work[rank]:.3g} s of its own work per step, "
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
