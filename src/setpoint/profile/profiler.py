"""Profiles of steps in cycles: traces for Perfetto, tables of operators, snapshots of GPU memory.

Each file is written completely or not at all.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerAction, ProfilerActivity, profile, schedule

from setpoint.config import RunError
from setpoint.files.atomic import replacing
from setpoint.profile.config import Profiling

CHATTER = b"USDT:"
"""Prefixes of the lines that PyTorch's profiler prints at start and stop."""


@contextmanager
def without_chatter() -> Iterator[None]:
    """Drop the profiler's lines from standard error; other lines are printed when the block ends.

    The library bypasses Python's streams, and no setting turns this off.
    """
    try:
        kept = os.dup(2)
    except OSError:  # standard error is closed, so nothing can be printed
        yield
        return
    with tempfile.TemporaryFile() as lines:
        sys.stderr.flush()
        os.dup2(lines.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            lines.seek(0)
            for line in lines:
                if not line.startswith(CHATTER):
                    os.write(2, line)


ENTRIES = 100_000
"""Number of newest events kept; one takes about a kilobyte with its stack."""


def begin_snapshot(section: Profiling, device: torch.device) -> None:
    """Start recording allocations and frees.

    Arguments:
        device: device of the model; only GPU memory is recorded.
    """
    if section.snapshot and device.type == "cuda":
        torch.cuda.memory._record_memory_history(max_entries=ENTRIES)


def write_snapshot(path: Path) -> Path:
    """Write the recording atomically.

    Raises:
        OSError: the file cannot be written.
    """
    with replacing(path) as staged:
        torch.cuda.memory._dump_snapshot(str(staged))
    return path


def end_snapshot(section: Profiling, device: torch.device) -> None:
    """Stop recording, and drop the recording."""
    if section.snapshot and device.type == "cuda":
        torch.cuda.memory._record_memory_history(enabled=None)


# How functions of Python are named, which a profile with stacks holds beside operators.
_PYTHON = re.compile(r"<|nn\.Module: |.*\(\d+\): ")
LONGEST = 64


def operator_table(profiled: profile, section: Profiling, steps: int, unit: str = "steps") -> str:
    """Format a table of operators by time.

    The time of an operator excludes the operators that it calls, so the rows add up to the total.
    On a GPU the rows are ordered by GPU time: that of the kernels that an operator launches.
    """
    averages = profiled.key_averages(group_by_input_shape=section.shapes)
    rows = [row for row in averages if _is_operator(row)]
    on_gpu = any(row.self_device_time_total for row in rows)
    rows.sort(key=_gpu_time if on_gpu else _cpu_time, reverse=True)
    cpu, gpu = sum(map(_cpu_time, rows)), sum(map(_gpu_time, rows))
    headings = ["operator", "calls", "CPU ms", "share"]
    if on_gpu:
        headings += ["GPU ms", "share"]
    if section.flops:
        headings.append("GFLOP")
    if section.memory:
        headings.append("MB kept")
    if section.shapes:
        headings.append("shapes of inputs")
    cells = [headings]
    for row in rows[: section.top]:
        line = [row.key[:LONGEST], f"{row.count:,}", *_time(_cpu_time(row), cpu)]
        if on_gpu:
            line += _time(_gpu_time(row), gpu)
        if section.flops:
            line.append(f"{row.flops / 1e9:,.3f}" if row.flops else "-")
        if section.memory:
            kept = row.self_cpu_memory_usage + row.self_device_memory_usage
            line.append(f"{round(kept / 1e6, 2) + 0.0:,.2f}")  # what is added makes -0 a 0
        if section.shapes:
            line.append(str(row.input_shapes))
        cells.append(line)
    totals = f"{cpu / 1e3:,.1f} ms of CPU" + (f", {gpu / 1e3:,.1f} ms of GPU" if on_gpu else "")
    if section.flops:
        totals += f", {sum(row.flops for row in rows) / 1e9:,.3f} GFLOP counted"
    title = f"{steps} {unit}, {len(rows)} operators, {totals}"
    return "\n".join([title, *_aligned(cells, text_last=section.shapes)])


def _is_operator(row: Any) -> bool:
    """True if a row is an operator: no span, Python function, kernel or allocation."""
    named = row.is_user_annotation or row.key.startswith(("ProfilerStep#", "[memory]"))
    return row.device_type.name == "CPU" and not named and not _PYTHON.match(row.key)


def _cpu_time(row: Any) -> float:
    return max(0.0, row.self_cpu_time_total)


def _gpu_time(row: Any) -> float:
    return row.self_device_time_total


def _time(microseconds: float, total: float) -> list[str]:
    share = microseconds / total if total else 0.0
    return [f"{microseconds / 1e3:,.3f}", f"{share:.1%}"]


def _aligned(cells: Sequence[Sequence[str]], text_last: bool) -> list[str]:
    """Lines with columns: the first is text, and the last may be; the others are numbers."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    last = len(widths) - 1 if text_last else -1
    lines: list[str] = []
    for row in cells:
        line = [
            cell.ljust(width) if index in (0, last) else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(line).rstrip())
    return lines


STAGED = ".tmp-"
HEAD = 1 << 16
"""Characters at the beginning of a trace in which its events begin."""
EVENTS = '"traceEvents": ['
COUNTER = "allocated since the trace began"


def write_trace(profiled: profile, path: Path, memory: bool) -> Path:
    """Write the trace of a profile atomically.

    Arguments:
        path: ends in `.json.gz`; an existing file is replaced.

    Raises:
        OSError, RuntimeError: the file cannot be written.
    """
    plain = path.with_name(f"{path.name}{STAGED}{os.getpid()}.json")
    try:
        profiled.export_chrome_trace(str(plain))
        with replacing(path) as packed:
            # Level 1 is three times as fast as the default, and traces are long.
            with (
                plain.open(encoding="utf-8") as source,
                gzip.open(packed, "wt", compresslevel=1, encoding="utf-8") as target,
            ):
                head = source.read(HEAD)
                before, separator, after = head.partition(EVENTS)
                target.write(before + separator)
                if memory and separator:
                    target.writelines(f"\n{event}," for event in _curves(profiled, before))
                target.write(after)
                shutil.copyfileobj(source, target, HEAD)
            with packed.open("rb") as file:
                os.fsync(file.fileno())
    finally:
        plain.unlink(missing_ok=True)
    return path


def drop_staged(directory: Path) -> None:
    """Remove the partial files of a killed process.

    Raises:
        OSError: a file cannot be removed.
    """
    for staged in directory.glob(f"steps-*{STAGED}*"):
        staged.unlink()


def _curves(profiled: profile, head: str) -> Iterator[str]:
    """Counter events, with one curve per device.

    Kineto writes allocations as instants, which viewers do not draw.
    """
    base_time = re.search(r'"baseTimeNanoseconds": (\d+)', head)
    results = profiled.profiler and profiled.profiler.kineto_results
    if base_time is None or not results:
        return
    base, totals = int(base_time[1]), dict[str, int]()
    changes: list[Any] = [event for event in results.events() if event.name() == "[memory]"]
    for event in sorted(changes, key=lambda event: event.start_ns()):
        kind = event.device_type().name.lower()
        totals[kind] = totals.get(kind, 0) + event.nbytes()
        yield json.dumps(
            {
                "ph": "C",
                "name": f"{kind} bytes {COUNTER}",
                "pid": os.getpid(),
                "tid": 0,
                "ts": (event.start_ns() - base) / 1000,
                "args": {"bytes": totals[kind]},
            }
        )


def traces_of(section: Profiling, run: Path) -> Path:
    """The directory for the traces of a run.

    Arguments:
        section: its directory is in the run directory unless it is absolute.
    """
    folder = Path(os.path.expanduser(section.directory))
    return folder / run.resolve().name if folder.is_absolute() else run / folder


ENDING = (ProfilerAction.RECORD_AND_SAVE,)
RECORDING = (ProfilerAction.RECORD, *ENDING)


@dataclass(frozen=True, slots=True)
class Cycle:
    """The files written for one cycle.

    Arguments:
        first, last: the first and the last recorded step, numbered as in the run.
        trace: the Chrome trace; None if it could not be written.
        table: the slowest operators, as text; empty without a table.
        snapshot: the contents of GPU memory, as a pickle.
        lost: reason why some files could not be written.
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

    It begins with `start`, is called at each step, and ends with `close`, or on its own after the
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
        """True if no further step will be recorded."""
        return self._profile is None

    def start(self, step: int) -> None:
        """Start before the first step of a session.

        Raises:
            RunError: the trace folder cannot be created.
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
        """Continue after a step."""
        if self._profile is None:
            return
        self._step = step
        action = self._profile.current_action
        changes = action in ENDING or self._schedule(self._profile.step_num + 1) is not action
        with _quietly() if changes else nullcontext():
            self._profile.step()
        self._look()
        if self.section.repeat is not None and self.cycles == self.section.repeat:
            self.close()

    def rewind(self, step: int) -> None:
        """Rewind to a step; earlier recordings of a cycle stay in its trace."""
        self._step = step
        if self._first is not None:
            self._first = min(self._first, step + 1)

    def close(self) -> None:
        """Stop, and write the current cycle; may be called twice."""
        if self._profile is None:
            return
        running, self._profile = self._profile, None
        with _quietly():
            running.stop()

    def _look(self) -> None:
        """Check whether the next step starts the recording of a cycle."""
        assert self._profile is not None
        if self._first is None and self._profile.current_action in RECORDING:
            self._first = self._step + 1
            begin_snapshot(self.section, self.device)

    def _keep(self, profiled: profile) -> None:
        """Write the recording of a cycle; called by torch at the end of the cycle."""
        first, last, self._first = self._first, self._step, None
        if first is None or last < first:
            # A step that an error broke off is not a step.
            end_snapshot(self.section, self.device)
            return
        self.cycles += 1
        count = last - first + 1
        files: dict[str, Any] = {"whole": count == self.section.active}
        path = self.directory / f"steps-{first}-{last}"
        try:
            if self.section.snapshot:
                files["snapshot"] = write_snapshot(path.with_suffix(".pickle"))
            files["trace"] = write_trace(
                profiled, path.with_suffix(".json.gz"), self.section.memory
            )
            if self.section.top:
                table = operator_table(profiled, self.section, count, self.unit)
                files["table"] = table
                path.with_suffix(".txt").write_text(table + "\n", encoding="utf-8")
                files["table_path"] = path.with_suffix(".txt")
        except (OSError, RuntimeError) as error:
            # What is measured is worth less than what is trained: the run goes on.
            files["lost"] = str(error)
        finally:
            end_snapshot(self.section, self.device)
        self.report(Cycle(first, last, **files))


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress the profiler's warnings about its own settings."""
    with warnings.catch_warnings(), without_chatter():
        warnings.filterwarnings("ignore", message="Profiler won't be using warmup")
        warnings.filterwarnings("ignore", message=".*Profiler clears events")
        yield
