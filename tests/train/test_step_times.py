"""Seconds of the parts of steps."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from setpoint.parallel import replicas
from setpoint.train import step_times as module
from setpoint.train.callbacks.log import SECONDS, SHARES
from setpoint.train.run import train
from setpoint.train.step_times import StepTimes

from ..support.ranks import run_on_ranks
from .small import loop_of, small_job


def test_each_second_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part within another part keeps its own seconds."""
    clock = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])
    times = StepTimes(is_on=True)
    with times("step 1"):
        clock[0] += 1
        with times("pipeline"):
            clock[0] += 2
            with times("forward of stage 3"):
                clock[0] += 4
            clock[0] += 8
        clock[0] += 16
        with pytest.raises(ValueError), times("optimizer step"):
            clock[0] += 32
            raise ValueError
    found = {part: seconds for part, seconds in times.read().items() if seconds}
    assert found == {"forward": 4, "backward": 10, "optimizer": 32}


def test_events_measure_what_a_gpu_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in: when the host reads them, what is not done yet waits for the next row."""
    device, done = [0.0], [0.0]

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = device[0]

        def query(self) -> bool:
            return self.at <= done[0]

        def elapsed_time(self, end: Event) -> float:
            return (end.at - self.at) * 1e3

    class Stream:
        def wait_event(self, event: None) -> None:
            device[0] += 0.5

    compute, other = Stream(), Stream()
    monkeypatch.setattr(module.torch.cuda, "Event", Event)
    monkeypatch.setattr(module.torch.cuda, "Stream", Stream)
    monkeypatch.setattr(module.torch.cuda, "current_stream", lambda: compute)
    times = StepTimes(is_on=True, on_device=True)
    with module.measuring_waits(times), times("pipeline"):
        device[0] += 2
        with times("forward of stage 0"):
            device[0] += 3.5
            other.wait_event(None)  # a stream that communicates, while the other one computes
        compute.wait_event(None)
        device[0] += 7
        times.waits_until_end()
        compute.wait_event(None)
    with times("device"), times("optimizer step"):
        device[0] += 16
    done[0] = 14.0
    assert times.read() | {"data": 0} == {
        **dict.fromkeys(module.PARTS, 0.0), "forward": 4.0, "backward": 9.0, "communication": 1.0,
    }  # fmt: skip
    done[0] = 30.0
    assert times.read()["optimizer"] == 16.0 == times.read()["optimizer"]


WORLD, STEPS = 2, 2
ON_RANKS = (
    f"duration={STEPS} steps", f"parallel.world_size={WORLD}", "evaluation=null",
    "model.layers=2", "batch.micro_size=1",
)  # fmt: skip
SHAPES = {
    # Each step: counts, one bucket, what is reported.
    ("parallel.replicate=2",): 3,
    ("parallel.replicate=2", "precision={params=bf16, compute=bf16, reduce=fp32}"): 3,
    # The layers are gathered twice, the rest once; all gradients are divided.
    ("parallel.shard=2",): 10,
    ("parallel.pipeline=2",): 4,
}
"""With the least number of times that a step waits for the other rank."""

clock = 0.0


def slow(inner: Any) -> Any:
    """A collective that takes a second."""

    def wait(*given: Any, **named: Any) -> Any:
        global clock
        clock += 1
        return inner(*given, **named)

    return wait


def slow_sum(gradients: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """As DDP's, which it waits for where Python does not see it."""
    work: Any = dist.all_reduce(gradients, async_op=True)
    return work.get_future().then(slow(lambda done: done.value()[0]))


def trained(folder: Path, *flags: str) -> tuple[dict[str, float], list[Any]]:
    """The seconds of the parts of all steps, and the weights."""
    job = small_job(folder, *ON_RANKS, *flags)
    loop = loop_of(job)
    before = loop.times.read()
    loop.run()
    weights = [getattr(each, "_local_tensor", each) for each in loop.components.model.parameters()]
    now = loop.times.read()
    return {part: now[part] - before[part] for part in now}, weights


def waiting_is_communication(folder: Path) -> None:
    """Time is counted, not measured, by a clock that only collectives move forward."""
    global clock
    steps: Any = module
    steps.time = SimpleNamespace(perf_counter=lambda: clock)
    replicas._sum = slow_sum
    work: Any = dist.Work
    work.wait = slow(work.wait)
    slowed = work.wait
    for shape, least in SHAPES.items():
        began = clock
        found, weights = trained(folder, *shape, "tracking.metrics.step_time=waits")
        assert work.wait is slowed
        assert found["forward"] == found["backward"] == found["optimizer"] == 0, (shape, found)
        assert STEPS * least <= found["communication"] <= clock - began, (shape, found)
        _, others = trained(folder, *shape, "tracking.metrics.step_time=none")
        assert all(map(torch.equal, weights, others))


def test_waiting_for_other_ranks_is_no_forward_and_no_backward() -> None:
    run_on_ranks(WORLD, waiting_is_communication)


def test_rows_say_where_the_time_went(tmp_path: Path) -> None:
    """Evaluations and checkpoints after a row are in the next one."""
    flags = ("duration=3 steps", "evaluation.every=2 steps", "checkpoint.every=2 steps")
    text = (train(small_job(tmp_path, *flags)).directory / "metrics.jsonl").read_text()
    found = [row for line in text.splitlines() if (row := json.loads(line))["kind"] == "train"]
    for row in found:
        parts = [name for name in SECONDS if SECONDS[name] in row]
        assert parts == ["data", "forward", "backward", "optimizer", "evaluation", "save", "other"]
        assert sum(row[SHARES[name]] for name in parts) == pytest.approx(1)
        assert all(row[SECONDS[name]] >= 0 for name in parts) and row["seconds_forward"] > 0
        assert row["peak_rss"] > 1e7
    seconds = [row["seconds_evaluation"] for row in found]
    assert len(seconds) == 3 and max(seconds) == seconds[2]
    off = ("tracking.metrics.step_time=none", "tracking.metrics.memory=false")
    last = train(small_job(tmp_path / "off", "duration=1 steps", "evaluation=null", *off))
    row = json.loads((last.directory / "metrics.jsonl").read_text())
    assert not any(name.startswith(("seconds_", "share_", "peak_")) for name in row)
