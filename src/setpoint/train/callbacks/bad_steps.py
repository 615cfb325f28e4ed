"""Reports steps that were skipped: their loss is not finite, or a spike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from setpoint.train.step.loop import Callback, Phase

if TYPE_CHECKING:
    from setpoint.track.events import EventLog
    from setpoint.track.progress import Progress
    from setpoint.train.step.loop import Loop, StepResult


class BadStepsCallback(Callback):
    """Writes an event and a line for each."""

    phase = Phase.OBSERVE

    def __init__(self, events: EventLog, progress: Progress) -> None:
        self.events, self.progress = events, progress

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Report the step if it was skipped."""
        if result.policy is None:
            return
        step, found = result.step, {"loss": result.loss, "grad_norm": result.grad_norm}
        count = result.policy.in_a_row
        self.events.write("skip", step=step, **found, cause=result.cause, in_a_row=count)
        self.progress.note(f"step {step} is skipped: {result.wrong}")
