"""Tells the limits of a session how long its steps take."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from setpoint.train.loop import Callback, Phase

if TYPE_CHECKING:
    from setpoint.resilience.signals import Limiting
    from setpoint.train.loop import Loop, StepResult


class LimitsCallback(Callback):
    """Measures from the end of a step to that of the next one, with all that follows it."""

    phase = Phase.LAST

    def __init__(self, limits: Limiting) -> None:
        self.limits = limits
        self.since = 0.0

    def start(self, loop: Loop) -> None:
        """Measure from here."""
        self.since = time.monotonic()

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Tell how long it was."""
        now = time.monotonic()
        self.limits.step_took(now - self.since)
        self.since = now

    def rewound(self, loop: Loop) -> None:
        """Measure from here."""
        self.since = time.monotonic()
