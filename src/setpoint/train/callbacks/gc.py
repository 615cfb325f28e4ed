"""Collects Python's garbage when it is due."""

from __future__ import annotations

from typing import TYPE_CHECKING

from setpoint.resilience.config import GarbageCollection
from setpoint.resilience.gc import PacedCollection
from setpoint.train.step.loop import Callback, Phase
from setpoint.train.step.position import is_due

if TYPE_CHECKING:
    from setpoint.train.step.loop import Loop, StepResult


class CollectCallback(Callback):
    """Collects every so often, counted from the start of the run, and once at the start."""

    phase = Phase.TIDY

    def __init__(self, section: GarbageCollection) -> None:
        self.section = section
        self.garbage = PacedCollection(section)

    def start(self, loop: Loop) -> None:
        """Take over."""
        self.garbage.start()

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Collect if it is due."""
        if is_due(self.section.every, loop.before, loop.position, loop.last):
            self.garbage.collect()

    def close(self, loop: Loop) -> None:
        """Give back."""
        self.garbage.close()
