"""Says what is wrong with the GPUs of the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from setpoint.parallel.gpu_health import GpuHealth
from setpoint.train.loop import Callback, Phase
from setpoint.train.position import is_due

if TYPE_CHECKING:
    from setpoint.resilience.config import GpuHealthCheck
    from setpoint.track.events import EventLog
    from setpoint.track.progress import Progress
    from setpoint.train.loop import Loop, StepResult


class GpuHealthCallback(Callback):
    """Lets each rank look at its GPU, at the start and every so often; what is new is said."""

    phase = Phase.TIDY

    def __init__(self, config: GpuHealthCheck, events: EventLog, progress: Progress) -> None:
        self.config, self.events, self.progress = config, events, progress
        self.health: GpuHealth | None = None

    def start(self, loop: Loop) -> None:
        """Find the GPU, and look at it.

        Raises:
            SetpointError: NVML, or its Python package, is not there.
        """
        uuid = str(torch.cuda.get_device_properties(loop.components.device).uuid)
        self.health = GpuHealth(uuid, self.config.max_temperature)
        self.look(loop)

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Look where it is due."""
        if is_due(self.config.every, loop.before, loop.position, loop.last):
            self.look(loop)

    def close(self, loop: Loop) -> None:
        """Leave NVML."""
        if self.health is not None:
            self.health.close()

    def look(self, loop: Loop) -> None:
        """Write an event and a line for each that is new, of all ranks."""
        assert self.health is not None
        step = loop.position.step
        for rank, problems in enumerate(loop.components.world.all_of(self.health.look())):
            for problem in problems:
                self.events.write("gpu_health", step=step, rank=rank, problem=problem)
                self.progress.note(f"step {step}: the GPU of rank {rank}: {problem}")
