"""Profiles the steps that a job asks for, and reports what it found."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from torch.profiler import record_function

from setpoint.profile.profiler import Cycle, StepProfiler
from setpoint.profile.trace import traces_of
from setpoint.train.step.loop import Callback, Phase

if TYPE_CHECKING:
    import torch

    from setpoint.profile.config import Profiling
    from setpoint.track.events import EventLog
    from setpoint.track.progress import Progress
    from setpoint.train.step.loop import Loop


class ProfileCallback(Callback):
    """Records cycles of steps; runs first, so that a trace ends with its last step.

    Arguments:
        run: the run directory, which paths in events start from.
    """

    phase = Phase.STEP

    def __init__(
        self,
        section: Profiling,
        run: Path,
        rank: int,
        device: torch.device,
        events: EventLog,
        progress: Progress,
    ) -> None:
        self.section, self.rank = section, rank
        self.run, self.events, self.progress = run, events, progress
        directory = traces_of(section, run) / f"rank-{rank}"
        self.profiler = StepProfiler(section, directory, device, self.tell)

    def start(self, loop: Loop) -> None:
        """Begin, and name the parts of a step from now on."""
        loop.span = record_function
        self.profiler.start(loop.position.step)

    def after_launch(self, loop: Loop) -> None:
        """Go on; after the last cycle nothing stays behind."""
        if self.profiler.is_over:
            return
        self.profiler.after_step(loop.position.step)
        if self.profiler.is_over:
            loop.span = nullcontext

    def rewound(self, loop: Loop) -> None:
        """Number the steps from there."""
        self.profiler.rewind(loop.position.step)

    def close(self, loop: Loop) -> None:
        """Keep what was recorded of a cycle that the end of the session broke off."""
        loop.span = nullcontext
        if self.profiler.is_over:
            return
        self.profiler.close()
        wanted, seen = self.section.repeat, self.profiler.cycles
        if seen == 0 or (wanted is not None and seen < wanted):
            of = "" if wanted is None else f" of {wanted}"
            self.progress.note(
                f"profiling: the session ended at step {loop.position.step}, when {seen}{of} "
                f"cycles had recorded a step"
            )

    def tell(self, cycle: Cycle) -> None:
        """Record and show what a cycle left behind."""
        files = {"trace": cycle.trace, "table": cycle.table_path, "snapshot": cycle.snapshot}
        named = {kind: self.name(path) for kind, path in files.items() if path is not None}
        reason = {} if cycle.lost is None else {"lost": cycle.lost}
        self.events.write(
            "profile", step=cycle.last, first=cycle.first, rank=self.rank, **named, **reason
        )
        what = f"profile of steps {cycle.first} to {cycle.last}"
        if not cycle.whole:
            what += f", of {self.section.active} that were to be recorded,"
        for line in cycle.table.splitlines():
            self.progress.note(line)
        if "trace" in named:
            self.progress.note(f"{what}: {named['trace']}")
        if cycle.lost is not None:
            self.progress.note(f"{what} could not be written: {cycle.lost}")

    def name(self, path: Path) -> str:
        """A file as events name it."""
        return str(path.relative_to(self.run) if path.is_relative_to(self.run) else path)
