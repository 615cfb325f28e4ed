"""Warning about steps that wait for data."""

from __future__ import annotations

import math
import os
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from setpoint.data.loader import Spent
from setpoint.train.loop import Callback, Loop, Phase
from setpoint.train.verdict import StepResult

if TYPE_CHECKING:
    from setpoint.data.config import Loader
    from setpoint.train.session import Run

TOO_MUCH = 0.05
"""Minimum share of step time spent waiting for data for a warning."""
STEPS, SECONDS = 20, 10.0
"""Minimum number of steps, and seconds, of a measured interval."""


CHEAP = 1e-3
"""Cost of taking a micro-batch from a worker in seconds."""


class DataWaitCallback(Callback):
    """Writes an event for each interval with too much waiting, and a line for the first.

    The first step of a session, which starts the workers, does not count.
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
        """Begin a stretch."""
        self._begin(loop)

    def rewound(self, loop: Loop) -> None:
        """Begin a stretch."""
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
    """Suggest a change of the loader, by the costs of the batches of an interval.

    Arguments:
        waited: seconds of waiting for data, of the `seconds` of the steps.
    """
    batches = max(spent.batches, 1)
    making = spent.making / batches
    if spent.planning > waited / 2:
        return (
            f"{spent.planning / batches:.2g} s of each micro-batch went into finding its rows, "
            "which workers do not do: prepare streamed data, or lower data.packing.group_size"
        )
    took = f"making a micro-batch takes {making * 1e3:.3g} ms"
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
        return f"{took}, at times more: raise data.loader.prefetch from {section.prefetch}"
    limit = f" (there are {cores} cores: more help only where making waits for disk or network)"
    return (
        f"{took} and computing it {computing * 1e3:.3g} ms: raise data.loader.workers from "
        f"{section.workers} to {needed}{limit * (needed > cores)}"
    )
