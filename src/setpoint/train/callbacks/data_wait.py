"""Warns where steps wait for their data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from setpoint.train.step.loop import Callback, Phase

if TYPE_CHECKING:
    from setpoint.data.config import Loader
    from setpoint.track.events import EventLog
    from setpoint.track.progress import Progress
    from setpoint.train.step.loop import Loop, StepResult

TOO_MUCH = 0.05
"""Share of the time of the steps from which on waiting for data is worth a warning."""
STEPS, SECONDS = 20, 10.0
"""A stretch that is looked at has at least as many steps, and its steps take at least as long."""


class DataWaitCallback(Callback):
    """Writes an event for each stretch of steps that waited too much, and a line for the first.

    The first step of a session starts the workers and is left out.
    """

    phase = Phase.OBSERVE

    def __init__(self, section: Loader, events: EventLog, progress: Progress) -> None:
        self.section, self.events, self.progress = section, events, progress
        self.steps = -1
        self.stepping = self.waited = 0.0
        self.warned = False

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Look at the stretch that this step ends, if it does."""
        self.steps += 1
        if not self.steps:
            self._begin(loop)
            return
        seconds, waited = loop.stepping - self.stepping, loop.waited - self.waited
        if self.steps < STEPS or seconds < SECONDS:
            return
        if waited >= TOO_MUCH * seconds:
            self._warn(loop.position.step, waited / seconds)
        self._begin(loop)

    def _begin(self, loop: Loop) -> None:
        self.steps, self.stepping, self.waited = 0, loop.stepping, loop.waited

    def _warn(self, step: int, share: float) -> None:
        self.events.write("data_wait", step=step, steps=self.steps, share=share)
        if not self.warned:
            self.progress.note(
                f"step {step}: {share:.0%} of the last {self.steps} steps were spent waiting for "
                f"data; {advice(self.section)}"
            )
            self.warned = True


def advice(section: Loader) -> str:
    """What to raise."""
    now = f"data.loader.workers is {section.workers}"
    if not section.workers:
        return f"{now}: 1 or 2 make batches while steps are computed"
    return f"{now} and data.loader.prefetch {section.prefetch}: raise the first, then the second"
