"""Callbacks for the profiler, the compiler, GPU caches, garbage collection and time limits."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.profiler import record_function

from setpoint.compile.compile_model import Artifacts
from setpoint.compile.watch import News, Watch
from setpoint.config import RunError, fingerprint
from setpoint.profile.profiler import Cycle, StepProfiler, traces_of
from setpoint.resilience.config import GarbageCollection
from setpoint.resilience.gc import PacedCollection
from setpoint.train.loop import Callback, Phase
from setpoint.units import Period

if TYPE_CHECKING:
    from setpoint.compile.config import Compile
    from setpoint.profile.config import Profiling
    from setpoint.resilience.limits import SessionLimits
    from setpoint.train.loop import Loop
    from setpoint.train.session import Run
    from setpoint.train.verdict import StepResult


class ProfileCallback(Callback):
    """Records cycles of steps; runs first, so that a trace ends with the last step of its cycle."""

    phase = Phase.STEP

    def __init__(self, section: Profiling, run: Run) -> None:
        self.section, self.rank, self.directory = section, run.world.rank, run.directory
        self.events, self.progress = run.events, run.progress
        traces = traces_of(section, run.directory) / f"rank-{self.rank}"
        self.profiler = StepProfiler(section, traces, run.world.device, self.tell)

    def start(self, loop: Loop) -> None:
        """Start the profiler, and label the parts of steps."""
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
                "cycles had recorded a step"
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
            label += f", of {self.section.active} to be recorded,"
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


class CompileCallback(Callback):
    """Reports compilations after each step, and keeps their artifacts."""

    phase = Phase.OBSERVE

    def __init__(self, section: Compile, run: Run) -> None:
        components = run.components
        assert components.compiled is not None
        self.events, self.progress = run.events, run.progress
        self.watch = Watch(components.compiled, section.recompile_limit)
        self.fails, self.writes = section.fallback == "fail", run.world.is_main
        self.artifacts: Artifacts | None = None
        if section.artifacts is not None:
            digest = fingerprint(run.job)[:12]
            self.artifacts = Artifacts(section.artifacts, digest, components.device)
        self.is_first = True

    def start(self, loop: Loop) -> None:
        """Load what earlier runs compiled."""
        if self.artifacts is None:
            return
        count = self.artifacts.load()
        if count is None:
            self.progress.note(f"compile: {self.artifacts.path} is damaged and will be rewritten")
        elif count:
            self.progress.note(f"compile: {count} artifacts loaded from {self.artifacts.path}")

    def save(self) -> None:
        """Save compiled artifacts for later runs; the run continues if they cannot be written."""
        if self.artifacts is None or not self.writes:
            return
        try:
            self.artifacts.save()
        except OSError as error:
            path, why = self.artifacts.path, error.strerror
            self.progress.note(f"compile: the artifacts {path} cannot be written: {why}")

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Report compilations during the step and during an evaluation before it."""
        seconds = loop.position.seconds - loop.previous.seconds if self.is_first else None
        self.is_first = False
        self.tell(self.watch.news(), loop.position.step, seconds)

    def finish(self, loop: Loop) -> None:
        """Report compilations during the last evaluation."""
        self.tell(self.watch.news(), loop.position.step)

    def tell(self, news: News, step: int, first: float | None = None) -> None:
        """Record and show new compilations, and end the run if required.

        Arguments:
            first: seconds of the first step of this session; None for later ones.

        Raises:
            RunError: code ran eagerly, which ends the run by configuration.
        """
        if not news:
            return
        details = {} if first is None else {"first_step_seconds": first}
        self.events.write(
            "compile",
            step=step,
            graphs=news.graphs,
            seconds=news.seconds,
            recompilations=list(news.recompilations),
            fallbacks=list(news.fallbacks),
            **details,
        )
        if news.graphs:
            self.save()
            plural = "" if news.graphs == 1 else "s"
            again = f", {len(news.recompilations)} recompiled" if news.recompilations else ""
            self.progress.note(
                f"compile: {news.graphs} graph{plural} in {news.seconds:.1f} s{again} (step {step})"
            )
        if self.fails and news.fallbacks:
            fallbacks = "\n".join(news.fallbacks)
            raise RunError(f"step {step}: compile.fallback = fail: {fallbacks}")
        for text in news.fallbacks:
            self.progress.note(f"compile: {text} (step {step})")


class EmptyCacheCallback(Callback):
    """Releases unused GPU memory cached by PyTorch's allocator."""

    phase = Phase.TIDY

    def __init__(self, every: Period) -> None:
        self.every = every

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Release the cache if due."""
        if loop.is_due(self.every):
            torch.cuda.empty_cache()


class CollectCallback(Callback):
    """Collects garbage once at the start, and at an interval counted from the start of the run."""

    phase = Phase.TIDY

    def __init__(self, section: GarbageCollection) -> None:
        self.section = section
        self.garbage = PacedCollection(section)

    def start(self, loop: Loop) -> None:
        """Take over garbage collection from Python."""
        self.garbage.start()

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Collect if due."""
        if loop.is_due(self.section.every):
            self.garbage.collect()

    def close(self, loop: Loop) -> None:
        """Return garbage collection to Python."""
        self.garbage.close()


class LimitsCallback(Callback):
    """Measures the time between the ends of two steps."""

    phase = Phase.LAST

    def __init__(self, limits: SessionLimits) -> None:
        self.limits, self.since = limits, 0.0

    def start(self, loop: Loop) -> None:
        """Start measuring."""
        self.since = time.monotonic()

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Report the duration to the limits."""
        now = time.monotonic()
        self.limits.step_took(now - self.since)
        self.since = now

    def rewound(self, loop: Loop) -> None:
        """Start measuring again."""
        self.since = time.monotonic()


def watching_callbacks(run: Run) -> list[Callback]:
    """Build the callbacks requested by sections of the job, and the limits of the session."""
    job, callbacks = run.job, list[Callback]()
    section = job.profiling
    if section is not None and (section.ranks is None or run.world.rank in section.ranks):
        callbacks.append(ProfileCallback(section, run))
    if job.compile is not None:
        # If a fallback ends the run, its step is neither logged, evaluated nor saved.
        callbacks.append(CompileCallback(job.compile, run))
    if run.stop.limits is not None and run.stop.limits.ends:
        callbacks.append(LimitsCallback(run.stop.limits))
    if job.memory.empty_cache.unit != "never":
        callbacks.append(EmptyCacheCallback(job.memory.empty_cache))
    if job.resilience.gc is not None:
        callbacks.append(CollectCallback(job.resilience.gc))
    return callbacks
