"""What the fields of `[resilience]` about ranks that do not answer change."""

from __future__ import annotations

import sys
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from setpoint.config import RunError
from setpoint.ops.rank_health import GpuHealthCallback
from setpoint.ops.stragglers import StragglersCallback
from setpoint.parallel.replica_groups import ReplicaGroups
from setpoint.parallel.world import World
from setpoint.resilience.signals import StopRequest
from setpoint.track.heartbeat import read_heartbeats
from setpoint.track.jsonl import NoEvents
from setpoint.track.progress import Progress
from setpoint.train.build.components import build_components
from setpoint.train.config import Job
from setpoint.train.loop import Loop
from setpoint.train.position import Position
from setpoint.train.run import train
from setpoint.train.run_name import run_directory_of
from setpoint.train.session_limits import END_OF_JOB, SessionLimits, watch_limits

from ..ops.nvml_stand_in import nvml_stand_in
from .poison import Poisoned, poison_runs


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

ROWS: dict[str, tuple[Any, ...]] = {
    "TrainingResilience.heartbeat": (HEARTBEAT[0], beats, (), [60.0]),
    "Heartbeat.every": ("resilience.heartbeat.every=5", beats, HEARTBEAT, [5.0]),
    "TrainingResilience.liveness_every": ("resilience.liveness_every=2 steps", checked, (), [3]),
}


def spiked(job: Job) -> list[str]:
    """What becomes of the steps of a run whose last three batches are eight times as bad."""
    components, verdicts = build_components(job), list[str]()
    poisoned: Any = Poisoned(components, (5, 6, 7), 8.0)
    components.objective = poisoned
    loop = Loop(job, components, [], StopRequest(), Position())
    try:
        for _ in range(7):
            verdicts.append(loop.step().verdict.value)
    except RunError:
        verdicts.append("failed")
    return verdicts[4:]


SPIKE = ("resilience.spike={window=4, factor=2.0}",)
SKIPPED, TAKEN = ["skipped"] * 3, ["taken"] * 3

ROWS |= {
    "TrainingResilience.spike": (*SPIKE, spiked, (), SKIPPED),
    "Spike.window": ("resilience.spike.window=5", spiked, SPIKE, ["taken", "skipped", "skipped"]),
    "Spike.factor": ("resilience.spike.factor=9", spiked, SPIKE, TAKEN),
    "Spike.deviations": ("resilience.spike.deviations=1e6", spiked, SPIKE, TAKEN),
    "Spike.patience": ("resilience.spike.patience=2", spiked, SPIKE, ["taken", *SKIPPED[1:]]),
    "Spike.policy": ("resilience.spike.policy=fail", spiked, SPIKE, ["failed"]),
}


def kept(job: Job) -> int:
    """How many steps without a loss have left their batches."""
    with pytest.MonkeyPatch.context() as patch:
        poison_runs(patch, range(2, 4))
        return len(list((train(job).directory / "bad-batches").glob("step-*")))


ROWS["TrainingResilience.bad_batches"] = (
    "resilience.bad_batches=1", kept, ("resilience.non_finite=skip",), 1,
)  # fmt: skip


def limited(job: Job) -> tuple[list[str], str]:
    """What ends a session from outside."""
    stop = StopRequest()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(END_OF_JOB, str(time.time() + 1e6))
        watch_limits(stop, job, "run")
    found = stop.limits
    assert isinstance(found, SessionLimits)
    found.close()
    return list(found.ends), str(found.file)


DAY = "resilience.time_limit = 24 h"
ROWS |= {
    "TrainingResilience.time_limit": (
        "resilience.time_limit=1 day", limited, (), ([DAY, END_OF_JOB], "run/STOP"),
    ),
    "TrainingResilience.deadline": (
        "resilience.deadline=never", limited, (), ([], "run/STOP"),
    ),
    "TrainingResilience.stop_file": (
        "resilience.stop_file=/tmp/enough", limited, (), ([END_OF_JOB], "/tmp/enough"),
    ),
}  # fmt: skip


def compared(job: Job) -> list[int]:
    """After which steps the times of ranks are compared."""
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
    """Which of three ranks are slow that read data for 1, 1 and 1.5 seconds."""

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
    """After which steps GPUs are looked at, and what is said of one of 85 degrees."""
    assert job.resilience.gpu_health is not None
    found: list[tuple[int, list[str]]] = []

    def see(self: Any, loop: Loop) -> None:
        found.append((loop.position.step, self.health.new_problems()))

    with pytest.MonkeyPatch.context() as patch, nvml_stand_in() as gpu:
        gpu.degrees = 85
        patch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="1"))
        patch.setattr(GpuHealthCallback, "check", see)
        callback = GpuHealthCallback(job.resilience.gpu_health)
        Loop(job, build_components(job), [callback], StopRequest(), Position()).run()
    return found


STRAGGLERS = ("resilience.stragglers={}",)
HEALTH = ("resilience.gpu_health.every=2 steps",)
HOT = "its temperature is 85 C, and 80 C is hot"
ROWS |= {
    "TrainingResilience.stragglers": (
        "resilience.stragglers.every=2 steps", compared, (), [2, 4],
    ),
    "Stragglers.every": ("resilience.stragglers.every=3 steps", compared, STRAGGLERS, [3]),
    "Stragglers.factor": ("resilience.stragglers.factor=1.6", slow, STRAGGLERS, []),
    "TrainingResilience.gpu_health": (
        "resilience.gpu_health={}", compared, (), "refused: ConfigError",
    ),
    "GpuHealthCheck.every": (
        "resilience.gpu_health.every=3 steps", looked, HEALTH, [(0, []), (3, [])],
    ),
    "GpuHealthCheck.max_temperature": (
        "resilience.gpu_health.max_temperature=80", looked, HEALTH, [(0, [HOT]), (2, []), (4, [])],
    ),
}  # fmt: skip


def managed(job: Job) -> dict[str, Any]:
    """What torchft's manager is asked for."""
    found: dict[str, Any] = {}
    fake: Any = ModuleType("torchft")
    fake.Manager = lambda **given: found.update(given)
    fake.ProcessGroupGloo = lambda timeout: f"gloo, {timeout.total_seconds()} s"
    fake.ProcessGroupNCCL = lambda timeout: f"nccl, {timeout.total_seconds()} s"
    assert job.parallel.torchft is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torchft", fake)
        patch.setenv("TORCHFT_LIGHTHOUSE", "http://here:1")
        patch.setattr("socket.gethostname", lambda: "localhost")
        ReplicaGroups(job.parallel.torchft, 60.0, "", World(torch.device("cpu")))
    return {name: found[name] for name in ("lighthouse_addr", "min_replica_size", "pg")}


def parts(job: Job) -> int:
    """How many micro-batches of a step the replica groups divide."""
    return job.batch.accumulation


GROUPS = ("parallel.torchft={}", "batch.global_size=4")
SIZES = ("accumulation", "micro_size")

ROWS |= {
    "Parallel.torchft": (GROUPS[0], parts, GROUPS[1:], 2, SIZES),
    "TorchFT.lighthouse": ("parallel.torchft.lighthouse=http://there:1", managed, GROUPS,
                           None, SIZES),
    "TorchFT.replica_id": ("parallel.torchft.replica_id=1", run_directory_of, GROUPS, None, SIZES),
    "TorchFT.group_size": ("parallel.torchft.group_size=4", parts, GROUPS, 4, SIZES),
    "TorchFT.min_replica_size": ("parallel.torchft.min_replica_size=2", managed, GROUPS,
                                 None, SIZES),
    "TorchFT.process_group": ("parallel.torchft.process_group=nccl", managed,
                              (*GROUPS, "parallel.device=auto"), None, SIZES),
    "TorchFT.timeout": ("parallel.torchft.timeout=20", managed, GROUPS, None, SIZES),
}  # fmt: skip
