"""Tells alerts of progress, and trackers of samples of the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from setpoint.train.loop import Callback, Phase

if TYPE_CHECKING:
    from setpoint.track.alerts import Alerts
    from setpoint.track.system import SystemSampler
    from setpoint.track.trackers import Trackers
    from setpoint.train.loop import Loop, StepResult


class AlertCallback(Callback):
    """Says when steps end, so that a stall is seen."""

    phase = Phase.OBSERVE

    def __init__(self, alerts: Alerts) -> None:
        self.alerts = alerts

    def start(self, loop: Loop) -> None:
        """Begin to wait for steps."""
        self.alerts.progressed(loop.position.step)

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Say that a step has ended."""
        self.alerts.progressed(loop.position.step, result.loss)

    def rewound(self, loop: Loop) -> None:
        """Going back is progress, too."""
        self.alerts.progressed(loop.position.step)


class SystemCallback(Callback):
    """Hands samples of the machine to the trackers, with the step that they came after."""

    phase = Phase.OBSERVE

    def __init__(self, sampler: SystemSampler, trackers: Trackers) -> None:
        self.sampler, self.trackers = sampler, trackers

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Hand on what was sampled since the last step."""
        while self.sampler.waiting:
            row = self.sampler.waiting.popleft()
            self.trackers.write_beside({**row, "step": loop.position.step})
