"""Effects of the fields of `[resilience]` and `[profiling]`."""

import gc
import json
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.profiler import record_function

from setpoint.config import RunError
from setpoint.ops.heartbeat import read_heartbeats
from setpoint.ops.rank_health import GpuHealthCallback
from setpoint.ops.slow_steps import StragglersCallback
from setpoint.profile.profiler import Cycle, StepProfiler
from setpoint.resilience.limits import END_OF_JOB, SessionLimits, watch_limits
from setpoint.resilience.signals import StopRequest
from setpoint.track.jsonl import NoEvents
from setpoint.track.progress import Progress
from setpoint.train.build.components import build_components
from setpoint.train.callbacks.upkeep import CollectCallback
from setpoint.train.config import Job
from setpoint.train.engine import Verdict
from setpoint.train.loop import Loop
from setpoint.train.position import Position
from setpoint.train.run import train
from setpoint.train.verdict import StepResult

from ...ops.nvml_stand_in import nvml_stand_in
from ...profile.traces import read_trace, spans
from ..poison import Poisoned, poison_runs
from ..small import events, loop_of
from .observations import Row


def beats(job: Job) -> list[float]:
    """Seconds between the heartbeats of each rank."""
    return [beat.every for beat in read_heartbeats(train(job).directory)]


def checked(job: Job) -> list[int]:
    """The steps before which all ranks answer."""
    found: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("setpoint.train.run.LivenessCheck", lambda *_: found.append)
        train(job)
    return found


HEARTBEAT = ("resilience.heartbeat={}",)


def spiked(job: Job) -> list[str]:
    """Verdicts of the last three steps, with eight times the loss."""
    components, verdicts = build_components(job), list[str]()
    poisoned: Any = Poisoned(components, (5, 6, 7), 8.0)
    components.objective = poisoned
    loop = loop_of(job, components=components)
    try:
        for _ in range(7):
            verdicts.append(loop.step().verdict.value)
    except RunError:
        verdicts.append("failed")
    return verdicts[4:]


SPIKE = ("resilience.spike={window=4, factor=2.0}",)
SKIPPED, TAKEN = ["skipped"] * 3, ["taken"] * 3


def kept(job: Job) -> int:
    """Number of saved bad batches."""
    with pytest.MonkeyPatch.context() as patch:
        poison_runs(patch, range(2, 4))
        return len(list((train(job).directory / "bad-batches").glob("step-*")))


def limited(job: Job) -> tuple[list[str], str]:
    """Time limits of a session, and its stop file."""
    stop = StopRequest()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(END_OF_JOB, str(time.time() + 1e6))
        watch_limits(stop, job.resilience, "run")
    found = stop.limits
    assert isinstance(found, SessionLimits)
    found.close()
    return list(found.ends), str(found.file)


DAY = "resilience.time_limit = 24 h"


def compared(job: Job) -> list[int]:
    """Steps after which the times of ranks are compared."""
    found: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        see: Any = lambda _, loop: found.append(loop.position.step)  # noqa: E731
        patch.setattr(StragglersCallback, "compare", see)
        train(job)
    return found


class Recorder(NoEvents):
    """Keeps what events say."""

    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []

    def write(self, event: str, **details: Any) -> None:
        self.written.append(details)


def slow(job: Job) -> list[int]:
    """The slow ones of three ranks that read data for 1, 1 and 1.5 seconds."""

    def fill(table: torch.Tensor) -> None:
        table[1:, 0] = torch.tensor([1.0, 1.5])

    assert job.resilience.stragglers is not None
    events = Recorder()
    callback = StragglersCallback(job.resilience.stragglers)
    callback.events, callback.note, callback.steps = events, Progress().note, 1
    world = SimpleNamespace(rank=0, size=3, device="cpu", sum=fill)
    loop: Any = SimpleNamespace(
        components=SimpleNamespace(world=world), position=Position(), stepping=1.0, waited=1.0
    )
    callback.compare(loop)
    return [each["rank"] for facts in events.written for each in facts["ranks"]]


def looked(job: Job) -> list[tuple[int, list[str]]]:
    """Steps of GPU health checks, and the problems reported at 85 C."""
    assert job.resilience.gpu_health is not None
    found: list[tuple[int, list[str]]] = []

    def see(self: Any, loop: Loop) -> None:
        found.append((loop.position.step, self.health.new_problems()))

    with pytest.MonkeyPatch.context() as patch, nvml_stand_in() as gpu:
        gpu.degrees = 85
        patch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="1"))
        patch.setattr(GpuHealthCallback, "check", see)
        callback = GpuHealthCallback(job.resilience.gpu_health)
        loop_of(job, callback).run()
    return found


STRAGGLERS = ("resilience.stragglers={}",)
HEALTH = ("resilience.gpu_health.every=2 steps",)
HOT = "its temperature is 85 C, and the limit is 80 C"


def cycles_of(job: Job) -> list[tuple[Cycle, list[dict[str, Any]]]]:
    """The cycles of four steps of one matrix product, with the events of their traces."""
    cycles: list[Cycle] = []
    assert job.profiling is not None
    profiler = StepProfiler(job.profiling, Path(job.workspace), torch.device("cpu"), cycles.append)
    profiler.start(0)
    for step in range(1, 5):
        with record_function(f"step {step}"):
            torch.mm(torch.ones(8, 16), torch.ones(16, 4))
        profiler.after_step(step)
    profiler.close()
    return [(cycle, read_trace(cycle.trace)) for cycle in cycles if cycle.trace is not None]


def profiled(job: Job) -> list[list[str]]:
    """The steps in each trace."""
    return [spans(events) for _, events in cycles_of(job)]


def recorded(job: Job) -> tuple[bool, ...]:
    """True for each of shapes, allocations, stacks and FLOPs in a trace."""
    ((cycle, found),) = cycles_of(job)
    return (
        any("Input Dims" in event.get("args", {}) for event in found),
        any(event["ph"] == "C" for event in found),
        any(event.get("cat") == "python_function" for event in found),
        "GFLOP" in cycle.table,
    )


def placed(job: Job) -> list[str]:
    """Paths of traces, and the length of the table."""
    run = train(job).directory
    found = sorted(file for file in run.rglob("rank-0/*"))
    texts = [len(f.read_text().splitlines()) for f in found if f.suffix == ".txt"]
    return [*(str(f.relative_to(run)) for f in found), *map(str, texts)]


def snapped(job: Job) -> list[str]:
    """Calls that record GPU memory, with a stand-in for the GPU."""
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
    """Ranks with traces."""
    (path,) = (train(job).directory / "traces").rglob("*.json.gz")
    return (int(path.parent.name.removeprefix("rank-")),)


def collected(job: Job) -> list[tuple[int, int]]:
    """Garbage collections of a run: the step and the generation."""
    seen: list[tuple[int, int]] = []
    assert job.resilience.gc is not None
    loop = loop_of(job, CollectCallback(job.resilience.gc))

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
    """True if the run takes over garbage collection."""
    seen: list[bool] = []

    class Look(CollectCallback):
        def start(self, loop: Loop) -> None:
            super().start(loop)
            seen.append(gc.isenabled())

    gc.enable()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("setpoint.train.callbacks.upkeep.CollectCallback", Look)
        train(job)
    return bool(seen)


def by_itself(job: Job) -> bool:
    """True if automatic collection stays on."""
    seen: list[bool] = []
    assert job.resilience.gc is not None

    class Look(CollectCallback):
        def start(self, loop: Loop) -> None:
            super().start(loop)
            seen.append(gc.isenabled())

    gc.enable()
    callback = Look(job.resilience.gc)
    loop_of(job, callback).run()
    return seen == [True]


def used(job: Job) -> tuple[str, bool]:
    """The FLOPs formula in the record, and whether rows have an MFU."""
    run = train(job).directory
    (start,) = events(run, "start")
    (row, *_) = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return start["utilization"]["formula"], row["mfu"] is not None


def graceful(job: Job) -> float:
    """The grace period of a stop request."""
    stop = StopRequest()
    train(job, stop=stop)
    return stop.grace


def survived(job: Job) -> list[str]:
    """Verdicts of the steps of a run whose second to fifth losses are NaN."""
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
                loop.continue_from(back(loop, result))
    except RunError:
        verdicts.append("failed")
    return verdicts


ONE = ("profiling={wait=0, warmup=0, active=1}",)
# The first update calls what no later one does, which takes long to write down with its lines.
SECOND = ("profiling={wait=1, warmup=0, active=1}", "duration=2 steps")
GC = ("resilience.gc.every=2 steps",)


ROWS: dict[str, Row] = {
    "TrainingResilience.heartbeat": (HEARTBEAT[0], beats, (), [60.0]),
    "Heartbeat.every": ("resilience.heartbeat.every=5", beats, HEARTBEAT, [5.0]),
    "TrainingResilience.liveness_every": ("resilience.liveness_every=2 steps", checked, (), [3]),
    "TrainingResilience.spike": (*SPIKE, spiked, (), SKIPPED),
    "Spike.window": ("resilience.spike.window=5", spiked, SPIKE, ["taken", "skipped", "skipped"]),
    "Spike.factor": ("resilience.spike.factor=9", spiked, SPIKE, TAKEN),
    "Spike.deviations": ("resilience.spike.deviations=1e6", spiked, SPIKE, TAKEN),
    "Spike.patience": ("resilience.spike.patience=2", spiked, SPIKE, ["taken", *SKIPPED[1:]]),
    "Spike.policy": ("resilience.spike.policy=fail", spiked, SPIKE, ["failed"]),
    "TrainingResilience.bad_batches": ("resilience.bad_batches=1", kept,
        ("resilience.non_finite=skip",), 1),
    "TrainingResilience.time_limit": ("resilience.time_limit=1 day", limited, (),
        ([DAY, END_OF_JOB], "run/STOP")),
    "TrainingResilience.deadline": ("resilience.deadline=never", limited, (), ([], "run/STOP")),
    "TrainingResilience.stop_file": ("resilience.stop_file=/tmp/enough", limited, (),
        ([END_OF_JOB], "/tmp/enough")),
    "TrainingResilience.stragglers": ("resilience.stragglers.every=2 steps", compared, (), [2, 4]),
    "Stragglers.every": ("resilience.stragglers.every=3 steps", compared, STRAGGLERS, [3]),
    "Stragglers.factor": ("resilience.stragglers.factor=1.6", slow, STRAGGLERS, []),
    "TrainingResilience.gpu_health": ("resilience.gpu_health={}", compared, (),
        "refused: ConfigError"),
    "GpuHealthCheck.every": ("resilience.gpu_health.every=3 steps", looked, HEALTH,
        [(0, []), (3, [])]),
    "GpuHealthCheck.max_temperature": ("resilience.gpu_health.max_temperature=80", looked, HEALTH,
        [(0, [HOT]), (2, []), (4, [])]),
    "Job.profiling": ("profiling.active=1", placed, (), None),
    "Profiling.skip": ("profiling.skip=2", profiled, ONE, [["step 3"]]),
    "Profiling.wait": ("profiling.wait=1", profiled, ONE, [["step 2"]]),
    "Profiling.warmup": ("profiling.warmup=3", profiled, ONE, [["step 4"]]),
    "Profiling.active": ("profiling.active=2", profiled, ONE, [["step 1", "step 2"]]),
    "Profiling.repeat": ("profiling.repeat=2", profiled, SECOND[:1], [["step 2"], ["step 4"]]),
    "Profiling.ranks": ("profiling.ranks=[1]", ranked, ONE, None),
    "Profiling.shapes": ("profiling.shapes=true", recorded, SECOND, (True, False, False, False)),
    "Profiling.memory": ("profiling.memory=true", recorded, SECOND, (False, True, False, False)),
    "Profiling.stacks": ("profiling.stacks=true", recorded, SECOND, (False, False, True, False)),
    "Profiling.flops": ("profiling.flops=true", recorded, SECOND, None),
    "Profiling.directory": ("profiling.directory=profiles", placed, ONE, None),
    "Profiling.top": ("profiling.top=3", placed, ONE, None),
    "Profiling.snapshot": ("profiling.snapshot=true", snapped, ONE,
        ["all", "None", "steps-1-1.pickle"]),
    "TrainingResilience.gc": ("resilience.gc.every=2 steps", paced, (), True),
    "GarbageCollection.every": ("resilience.gc.every=3 steps", collected, GC, [(0, 2), (3, 1)]),
    "GarbageCollection.generation": ("resilience.gc.generation=0", collected, GC,
        [(0, 2), (2, 0), (4, 0)]),
    "GarbageCollection.automatic": ("resilience.gc.automatic=true", by_itself, GC, True),
    "TrainingResilience.grace_period": ("resilience.grace_period=5", graceful, (), 5.0),
    "TrainingResilience.non_finite": ("resilience.non_finite=skip", survived, (),
        ["taken", *["skipped"] * 4, "taken"]),
    "SkipStep.limit": ("resilience.non_finite.limit=2", survived, ("resilience.non_finite=skip",),
        ["taken", *["skipped"] * 2, "failed"]),
    "RollBack.limit": ("resilience.non_finite.limit=1", survived,
        ("resilience.non_finite=rollback",), ["taken", *["rolled_back"] * 2, "failed"]),
    "Tracking.flops": ("tracking.flops=palm_causal", used, (), ("palm_causal", False)),
    "Tracking.peak_flops": ("tracking.peak_flops=1e12", used, (), ("palm", True)),
}  # fmt: skip
