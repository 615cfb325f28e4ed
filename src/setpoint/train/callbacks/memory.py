"""Reports memory by part, and empties the allocator's cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from setpoint.memory.report import begin, measure
from setpoint.track.events import EventLog
from setpoint.track.progress import Progress
from setpoint.train.step.loop import Callback, Phase
from setpoint.train.step.position import is_due
from setpoint.units import Period

if TYPE_CHECKING:
    from setpoint.train.step.loop import Loop, StepResult


class MemoryCallback(Callback):
    """Reports the memory of each part once, after the first step of a session."""

    phase = Phase.STEP

    def __init__(self, events: EventLog, progress: Progress) -> None:
        self.events, self.progress = events, progress
        self.reported = False

    def start(self, loop: Loop) -> None:
        """Begin to look for the peak."""
        begin(loop.parts.device)

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Report, the first time."""
        if self.reported:
            return
        self.reported = True
        parts = loop.parts
        held = dict(parts.weights.named_parameters())
        known = {} if parts.zero is None else parts.zero.held_here()
        report = measure(parts.model, held, parts.optimizer, parts.device, known)
        self.events.write("memory", step=loop.position.step, **report._asdict())
        self.progress.note(report.line())


class EmptyCacheCallback(Callback):
    """Gives back the GPU memory that PyTorch's allocator caches and does not use."""

    phase = Phase.TIDY

    def __init__(self, every: Period) -> None:
        self.every = every

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Give it back if it is due."""
        if is_due(self.every, loop.before, loop.position, loop.last):
            torch.cuda.empty_cache()
