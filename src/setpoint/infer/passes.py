"""Profiling and garbage collection between forward passes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setpoint.profile.profiler import Cycle, StepProfiler, traces_of
from setpoint.resilience.gc import PacedCollection

if TYPE_CHECKING:
    from setpoint.infer.config import Inference
    from setpoint.infer.loaded_model import LoadedModel


class Passes:
    """Counts the forward passes of a model, and runs whatever is due between them.

    A pass ends when the next one begins, so that it includes the use of its result.
    """

    def __init__(self, job: Inference, loaded: LoadedModel) -> None:
        self.count = 0
        self.profiles: Profiles | None = None
        self._profiler: StepProfiler | None = None
        section, gc, rank = job.profiling, job.resilience.gc, loaded.runner.world.rank
        if section is not None and (section.ranks is None or rank in section.ranks):
            self.profiles = Profiles(wanted=section.repeat)
            keep, folder = self.profiles.cycles.append, folder_of(job) / f"rank-{rank}"
            self._profiler = StepProfiler(section, folder, loaded.device, keep, unit="passes")
        self._every = None if gc is None else gc.every
        self._garbage = None if gc is None else PacedCollection(gc)
        self._begun = time.monotonic()
        self._seconds = 0.0

    def start(self) -> None:
        """Take over garbage collection from Python."""
        if self._garbage is not None:
            self._garbage.start()

    def begin(self, *_: object) -> None:
        """Begin a pass; a forward hook of the model."""
        if self.count:
            self._after()
        elif self._profiler is not None:
            # Not earlier: reading and tokenization would be part of the first pass.
            self._profiler.start(0)
        self.count += 1

    def finish(self) -> None:
        """End the last pass."""
        if self.count:
            self._after()
        if self.profiles is not None:
            self.profiles.passes = self.count

    def close(self) -> None:
        """Save recordings and restore Python's garbage collection, even after an error."""
        if self._profiler is not None:
            self._profiler.close()
        if self._garbage is not None:
            self._garbage.close()

    def _after(self) -> None:
        # Garbage collection is not part of the pass.
        if self._profiler is not None:
            self._profiler.after_step(self.count)
        if self._garbage is not None and self._is_due():
            self._garbage.collect()

    def _is_due(self) -> bool:
        every, before = self._every, self._seconds
        self._seconds = time.monotonic() - self._begun
        if every is None or every.unit == "never":
            return False
        if every.unit == "steps":
            return self.count % every.count == 0
        return self._seconds // every.count > before // every.count


@contextmanager
def watching(job: Inference, loaded: LoadedModel) -> Iterator[Passes]:
    """Run a job's profiling and garbage collection between forward passes.

    Arguments:
        loaded: the loaded model, which gets a temporary hook if needed.

    Returns:
        a context for the tasks; the profiles are complete when it exits.

    Raises:
        RunError: the trace directory cannot be created.
    """
    passes = Passes(job, loaded)
    if job.profiling is None and job.resilience.gc is None:
        yield passes
        return
    hook = loaded.model.register_forward_pre_hook(passes.begin)
    try:
        passes.start()
        yield passes
        passes.finish()
    finally:
        hook.remove()
        passes.close()


@dataclass(slots=True)
class Profiles:
    """Profiles of a job.

    Arguments:
        wanted: requested number of cycles; None: unlimited.
    """

    passes: int = 0
    cycles: list[Cycle] = field(default_factory=list)
    wanted: int | None = None

    def to_json(self, output: Path | None) -> dict[str, Any]:
        """The profiles as JSON."""
        output = None if output is None else Path(os.path.expanduser(output))
        rows: list[dict[str, Any]] = []
        for cycle in self.cycles:
            files = {"trace": cycle.trace, "table": cycle.table_path, "snapshot": cycle.snapshot}
            named = {k: _name(path, output) for k, path in files.items() if path is not None}
            lost = {} if cycle.lost is None else {"lost": cycle.lost}
            rows.append({"first": cycle.first, "last": cycle.last, **named, **lost})
        return {"passes": self.passes, "cycles": rows}

    def format_lines(self) -> list[str]:
        """The profiles as text."""
        lines: list[str] = []
        for cycle in self.cycles:
            lines += cycle.table.splitlines()
            title = f"profile of passes {cycle.first} to {cycle.last}"
            if cycle.trace is not None:
                lines.append(f"{title}: {cycle.trace}")
            if cycle.lost is not None:
                lines.append(f"{title} could not be written: {cycle.lost}")
        complete = sum(cycle.whole for cycle in self.cycles)
        if complete < (self.wanted or 1):
            total = "" if self.wanted is None else f" of {self.wanted}"
            lines.append(
                f"profiling: the job ended after {self.passes} forward passes, when "
                f"{complete}{total} cycles were complete"
            )
        return lines


def folder_of(job: Inference) -> Path:
    """Trace directory of a job.

    Arguments:
        job: the job; its profiling is not null. Without an output, the directory is absolute.
    """
    assert job.profiling is not None
    if job.output is None:
        return Path(os.path.expanduser(job.profiling.directory))
    return traces_of(job.profiling, Path(os.path.expanduser(job.output)))


def _name(path: Path, output: Path | None) -> str:
    return str(
        path if output is None or not path.is_relative_to(output) else path.relative_to(output)
    )
