"""Rows of the table of effects: the fields of profiling, of garbage and of MFU."""

from __future__ import annotations

import gc
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from setpoint.config import RunError
from setpoint.profile.profiler import StepProfiler
from setpoint.resilience.signals import StopRequest
from setpoint.train.build.components import build_components
from setpoint.train.callbacks.profile import CollectCallback
from setpoint.train.config import Job
from setpoint.train.engine import Verdict
from setpoint.train.loop import Loop
from setpoint.train.position import Position
from setpoint.train.run import train
from setpoint.train.verdict import StepResult

from ..profile.traces import read_trace, spans
from .poison import Poisoned
from .small import events


def profiled(job: Job) -> list[list[str]]:
    """The steps in the traces of a run."""
    run = train(job).directory
    files = sorted((run / "traces").rglob("*.json.gz"))
    return [[s for s in spans(read_trace(f)) if s.startswith("step")] for f in files]


def recorded(job: Job) -> tuple[bool, ...]:
    """What traces tell of operators: shapes, allocations, lines, operations."""
    run = train(job).directory
    (file,) = (run / "traces").rglob("*.json.gz")
    (table,) = (run / "traces").rglob("*.txt")
    found = read_trace(file)
    return (
        any("Input Dims" in event.get("args", {}) for event in found),
        any(event["ph"] == "C" for event in found),
        any(event.get("cat") == "python_function" for event in found),
        "GFLOP" in table.read_text(),
    )


def placed(job: Job) -> list[str]:
    """Where traces lie, and how long the table is."""
    run = train(job).directory
    found = sorted(file for file in run.rglob("rank-0/*"))
    texts = [len(f.read_text().splitlines()) for f in found if f.suffix == ".txt"]
    return [*(str(f.relative_to(run)) for f in found), *map(str, texts)]


def snapped(job: Job) -> list[str]:
    """Whether a GPU's memory is written down, with what stands for a GPU."""
    assert job.profiling is not None
    calls: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        memory: Any = torch.cuda.memory
        note: Any = lambda enabled="all", **_: calls.append(str(enabled))  # noqa: E731
        patch.setattr(memory, "_record_memory_history", note)
        patch.setattr(memory, "_dump_snapshot", lambda path: Path(path).write_text("memory"))
        folder, device = Path(job.workspace), torch.device("cuda")
        profiler = StepProfiler(job.profiling, folder, device, lambda _: None)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="CUDA is not available")
            profiler.start(0)
        for step in range(1, 6):
            profiler.after_step(step)
    return calls + sorted(file.name for file in folder.glob("*.pickle"))


def ranked(job: Job) -> tuple[int, ...] | None:
    """On which ranks there are traces; a run of one rank has no others."""
    (path,) = (train(job).directory / "traces").rglob("*.json.gz")
    return (int(path.parent.name.removeprefix("rank-")),)


def collected(job: Job) -> list[tuple[int, int]]:
    """The collections of a run, each with the updates before it, and how Python is left."""
    seen: list[tuple[int, int]] = []
    assert job.resilience.gc is not None
    loop = Loop(
        job, build_components(job), [CollectCallback(job.resilience.gc)], StopRequest(), Position()
    )

    def note(phase: str, details: dict[str, Any]) -> None:
        if phase == "start":
            seen.append((loop.position.step, details["generation"]))

    gc.disable()  # so that nothing is collected before the loop begins
    gc.callbacks.append(note)
    try:
        loop.run()
    finally:
        gc.callbacks.remove(note)
        gc.enable()
    return seen


def paced(job: Job) -> bool:
    """Whether Python collects by itself while a run trains."""
    seen: list[bool] = []

    class Look(CollectCallback):
        def start(self, loop: Loop) -> None:
            super().start(loop)
            seen.append(gc.isenabled())

    gc.enable()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("setpoint.train.callbacks.profile.CollectCallback", Look)
        train(job)
    return bool(seen)


def by_itself(job: Job) -> bool:
    """Whether Python collects beside what is asked for."""
    seen: list[bool] = []
    assert job.resilience.gc is not None

    class Look(CollectCallback):
        def start(self, loop: Loop) -> None:
            super().start(loop)
            seen.append(gc.isenabled())

    gc.enable()
    callback = Look(job.resilience.gc)
    Loop(job, build_components(job), [callback], StopRequest(), Position()).run()
    return seen == [True]


def used(job: Job) -> tuple[str, bool]:
    """The formula in the record, and whether rows have an mfu."""
    run = train(job).directory
    (start,) = events(run, "start")
    (row, *_) = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return start["utilization"]["formula"], row["mfu"] is not None


def graceful(job: Job) -> float:
    """How long a stop waits for the step under way."""
    stop = StopRequest()
    train(job, stop=stop)
    return stop.grace


def survived(job: Job) -> list[str]:
    """What becomes of the steps of a run whose second to fifth batches have no loss."""
    components, verdicts = build_components(job), list[str]()
    poisoned: Any = Poisoned(components, range(2, 6))
    components.objective = poisoned

    def back(loop: Loop, result: StepResult) -> Position:
        assert result.policy is not None
        result.policy.roll_back_to(0, 2, result.wrong)
        return Position()

    loop = Loop(job, components, [], StopRequest(), Position(), roll_back=back)
    try:
        for _ in range(6):
            result = loop.step()
            verdicts.append(result.verdict.value)
            if result.verdict is Verdict.ROLLED_BACK:
                loop.rewind(result)
    except RunError:
        verdicts.append("failed")
    return verdicts


ONE = ("profiling={wait=0, warmup=0, active=1}",)
# The first update calls what no later one does, which takes long to write down with its lines.
SECOND = ("profiling={wait=1, warmup=0, active=1}", "duration=2 steps")
GC = ("resilience.gc.every=2 steps",)
See = Callable[[Job], Any]
# By the name of a field: the change, where it is seen, what is set on both sides, and what is seen.
ROWS: dict[str, tuple[str, See, tuple[str, ...], Any]] = {
    "Job.profiling": ("profiling.active=1", profiled, (), [["step 3"]]),
    "Profiling.skip": ("profiling.skip=2", profiled, ONE, [["step 3"]]),
    "Profiling.wait": ("profiling.wait=1", profiled, ONE, [["step 2"]]),
    "Profiling.warmup": ("profiling.warmup=3", profiled, ONE, [["step 4"]]),
    "Profiling.active": ("profiling.active=2", profiled, ONE, [["step 1", "step 2"]]),
    "Profiling.repeat": (
        "profiling.repeat=2", profiled, SECOND[:1],
        [["step 2"], ["step 4"]],
    ),
    "Profiling.ranks": ("profiling.ranks=[1]", ranked, ONE, None),
    "Profiling.shapes": ("profiling.shapes=true", recorded, SECOND, (True, False, False, False)),
    "Profiling.memory": ("profiling.memory=true", recorded, SECOND, (False, True, False, False)),
    "Profiling.stacks": ("profiling.stacks=true", recorded, SECOND, (False, False, True, False)),
    "Profiling.flops": ("profiling.flops=true", recorded, SECOND, None),
    "Profiling.directory": ("profiling.directory=profiles", placed, ONE, None),
    "Profiling.top": ("profiling.top=3", placed, ONE, None),
    "Profiling.snapshot": (
        "profiling.snapshot=true", snapped, ONE, ["all", "None", "steps-1-1.pickle"],
    ),
    "TrainingResilience.gc": ("resilience.gc.every=2 steps", paced, (), True),
    "GarbageCollection.every": (
        "resilience.gc.every=3 steps", collected, GC, [(0, 2), (3, 1)],
    ),
    "GarbageCollection.generation": (
        "resilience.gc.generation=0", collected, GC, [(0, 2), (2, 0), (4, 0)],
    ),
    "GarbageCollection.automatic": ("resilience.gc.automatic=true", by_itself, GC, True),
    "TrainingResilience.grace_period": ("resilience.grace_period=5", graceful, (), 5.0),
    "TrainingResilience.non_finite": (
        "resilience.non_finite=skip", survived, (), ["taken", *["skipped"] * 4, "taken"],
    ),
    "SkipStep.limit": (
        "resilience.non_finite.limit=2", survived, ("resilience.non_finite=skip",),
        ["taken", *["skipped"] * 2, "failed"],
    ),
    "RollBack.limit": (
        "resilience.non_finite.limit=1", survived, ("resilience.non_finite=rollback",),
        ["taken", *["rolled_back"] * 2, "failed"],
    ),
    "Tracking.flops": ("tracking.flops=palm_causal", used, (), ("palm_causal", False)),
    "Tracking.peak_flops": ("tracking.peak_flops=1e12", used, (), ("palm", True)),
}  # fmt: skip
