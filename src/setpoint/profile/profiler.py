"""Profiles steps in cycles, and writes each cycle's trace whole or not at all."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerAction, ProfilerActivity, profile, schedule

from setpoint.config import RunError
from setpoint.profile.config import Profiling
from setpoint.profile.quiet import without_chatter
from setpoint.profile.snapshot import begin_snapshot, end_snapshot, write_snapshot
from setpoint.profile.table import operator_table
from setpoint.profile.trace import drop_staged, write_trace

ENDING = (ProfilerAction.RECORD_AND_SAVE,)
RECORDING = (ProfilerAction.RECORD, *ENDING)


@dataclass(frozen=True, slots=True)
class Cycle:
    """What one cycle left behind.

    Arguments:
        first, last: the first and the last step recorded, as the run counts them.
        trace: the Chrome trace; None if it could not be written.
        table: the operators that take longest, as text; empty without a table.
        snapshot: what the GPU's memory held, as a pickle.
        lost: why something of it could not be written.
    """

    first: int
    last: int
    trace: Path | None = None
    table: str = ""
    table_path: Path | None = None
    snapshot: Path | None = None
    lost: str | None = None
    whole: bool = True


class StepProfiler:
    """Runs torch.profiler over the steps of a session.

    It begins with `start`, is called at each step, and ends with `close`, or by itself after the
    last cycle.
    """

    def __init__(
        self,
        section: Profiling,
        directory: Path,
        device: torch.device,
        report: Callable[[Cycle], None],
        unit: str = "steps",
    ) -> None:
        self.section, self.directory, self.device = section, directory, device
        self.report, self.unit = report, unit
        self.cycles = 0
        self._step = 0
        self._first: int | None = None
        self._profile: profile | None = None
        self._schedule: Callable[[int], ProfilerAction]

    @property
    def is_over(self) -> bool:
        """Whether no further step will be recorded."""
        return self._profile is None

    def start(self, step: int) -> None:
        """Begin before the first step of a session.

        Raises:
            RunError: if the folder of the traces cannot be made.
        """
        section = self.section
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            drop_staged(self.directory)
        except OSError as error:
            raise RunError(
                f"profiling.directory: {self.directory} cannot be written: {error.strerror}"
            ) from error
        activities = [ProfilerActivity.CPU]
        if self.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        with _quietly():
            self._schedule = schedule(
                skip_first=section.skip,
                wait=section.wait,
                warmup=section.warmup,
                active=section.active,
                repeat=section.repeat or 0,
            )
        self._profile = profile(
            activities=activities,
            schedule=self._schedule,
            on_trace_ready=self._keep,
            record_shapes=section.shapes,
            profile_memory=section.memory,
            with_stack=section.stacks,
            with_flops=section.flops,
        )
        self._step = step
        with _quietly():
            self._profile.start()
        self._look()

    def after_step(self, step: int) -> None:
        """Go on after a step."""
        if self._profile is None:
            return
        self._step = step
        now = self._profile.current_action
        changes = now in ENDING or self._schedule(self._profile.step_num + 1) is not now
        with _quietly() if changes else nullcontext():
            self._profile.step()
        self._look()
        if self.section.repeat is not None and self.cycles == self.section.repeat:
            self.close()

    def rewind(self, step: int) -> None:
        """Go back to a step; what a cycle recorded before stays in its trace."""
        self._step = step
        if self._first is not None:
            self._first = min(self._first, step + 1)

    def close(self) -> None:
        """End, and keep what a cycle has recorded so far; may be called twice."""
        if self._profile is None:
            return
        running, self._profile = self._profile, None
        with _quietly():
            running.stop()

    def _look(self) -> None:
        """See whether a cycle begins to record with the next step."""
        assert self._profile is not None
        if self._first is None and self._profile.current_action in RECORDING:
            self._first = self._step + 1
            begin_snapshot(self.section, self.device)

    def _keep(self, seen: profile) -> None:
        """Write what a cycle has recorded. torch calls it when it ends."""
        first, last, self._first = self._first, self._step, None
        if first is None or last < first:
            # A step that an error broke off is no step.
            end_snapshot(self.section, self.device)
            return
        self.cycles += 1
        count = last - first + 1
        found: dict[str, Any] = {"whole": count == self.section.active}
        path = self.directory / f"steps-{first}-{last}"
        try:
            if self.section.snapshot:
                found["snapshot"] = write_snapshot(path.with_suffix(".pickle"))
            found["trace"] = write_trace(seen, path.with_suffix(".json.gz"), self.section.memory)
            if self.section.top:
                table = operator_table(seen, self.section, count, self.unit)
                found["table"] = table
                path.with_suffix(".txt").write_text(table + "\n", encoding="utf-8")
                found["table_path"] = path.with_suffix(".txt")
        except (OSError, RuntimeError) as error:
            # What is measured is worth less than what is trained: the run goes on.
            found["lost"] = str(error)
        finally:
            end_snapshot(self.section, self.device)
        self.report(Cycle(first, last, **found))


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep away what the profiler says of its own accord; the configuration says it all."""
    with warnings.catch_warnings(), without_chatter():
        warnings.filterwarnings("ignore", message="Profiler won't be using warmup")
        warnings.filterwarnings("ignore", message=".*Profiler clears events")
        yield
