"""Callback for profiling."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from torch.profiler import record_function

from setpoint.profile.profiler import Cycle, StepProfiler, traces_of
from setpoint.train.loop import Callback, Phase

if TYPE_CHECKING:
    from setpoint.profile.config import Profiling
    from setpoint.train.loop import Loop
    from setpoint.train.session import Run


class ProfileCallback(Callback):
    """Records cycles of steps; runs first, so that a trace ends with its last step."""

    phase = Phase.STEP

    def __init__(self, section: Profiling, run: Run) -> None:
        self.section, self.rank, self.directory = section, run.world.rank, run.directory
        self.events, self.progress = run.events, run.progress
        traces = traces_of(section, run.directory) / f"rank-{self.rank}"
        self.profiler = StepProfiler(section, traces, run.world.device, self.tell)

    def start(self, loop: Loop) -> None:
        """Start the profiler, and label the spans of steps."""
        loop.times.trace = record_function
        self.profiler.start(loop.position.step)

    def after_launch(self, loop: Loop) -> None:
        """Advance the profiler; remove it after the last cycle."""
        if self.profiler.is_over:
            return
        self.profiler.after_step(loop.position.step)
        if self.profiler.is_over:
            loop.times.trace = nullcontext

    def rewound(self, loop: Loop) -> None:
        """Continue the step numbers from the rollback."""
        self.profiler.rewind(loop.position.step)

    def close(self, loop: Loop) -> None:
        """Write the recording of a cycle interrupted by the end of the session."""
        loop.times.trace = nullcontext
        if self.profiler.is_over:
            return
        self.profiler.close()
        repeat, cycles = self.section.repeat, self.profiler.cycles
        if cycles == 0 or (repeat is not None and cycles < repeat):
            limit = "" if repeat is None else f" of {repeat}"
            self.progress.note(
                f"profiling: the session ended at step {loop.position.step}, when {cycles}{limit} "
                f"cycles had recorded a step"
            )

    def tell(self, cycle: Cycle) -> None:
        """Record and print the results of a cycle."""
        files = {"trace": cycle.trace, "table": cycle.table_path, "snapshot": cycle.snapshot}
        named = {kind: self.name(path) for kind, path in files.items() if path is not None}
        reason = {} if cycle.lost is None else {"lost": cycle.lost}
        self.events.write(
            "profile", step=cycle.last, first=cycle.first, rank=self.rank, **named, **reason
        )
        label = f"profile of steps {cycle.first} to {cycle.last}"
        if not cycle.whole:
            label += f", of {self.section.active} that were to be recorded,"
        for line in cycle.table.splitlines():
            self.progress.note(line)
        if "trace" in named:
            self.progress.note(f"{label}: {named['trace']}")
        if cycle.lost is not None:
            self.progress.note(f"{label} could not be written: {cycle.lost}")

    def name(self, path: Path) -> str:
        """Path of a file in events."""
        return str(
            path.relative_to(self.directory) if path.is_relative_to(self.directory) else path
        )
