"""Writes the record of a run that goes on with a changed configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from setpoint.train.step.loop import Callback, Phase

if TYPE_CHECKING:
    from setpoint.train.step.loop import Loop, StepResult


class RecordCallback(Callback):
    """Changes the record after the first step of a session, not before.

    A session that is stopped before it has trained anything leaves the record as it was.
    """

    phase = Phase.STEP

    def __init__(self, change: Callable[[], None]) -> None:
        self.change: Callable[[], None] | None = change

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Write once."""
        if self.change is not None:
            self.change()
            self.change = None
