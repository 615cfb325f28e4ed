"""Run by test_step_times.py in a process of its own: two ranks tell waiting from computing.

Time is counted, not measured: a clock that only collectives move forward.
"""

import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from setpoint.parallel import replicas
from setpoint.train import step_times as times

from ..support.ranks import fork_group
from .small import loop_of, small_job

WORLD, STEPS = 2, 2
COMMON = (
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
    job = small_job(folder, *COMMON, *flags)
    loop = loop_of(job)
    before = loop.times.read()
    loop.run()
    weights = [getattr(each, "_local_tensor", each) for each in loop.components.model.parameters()]
    now = loop.times.read()
    return {part: now[part] - before[part] for part in now}, weights


def check(rank: int, store: str) -> None:
    global clock
    module: Any = times
    module.time = SimpleNamespace(perf_counter=lambda: clock)
    replicas._sum = slow_sum
    work: Any = dist.Work
    work.wait = slow(work.wait)
    slowed = work.wait
    with tempfile.TemporaryDirectory() as name:
        for shape, least in SHAPES.items():
            began = clock
            found, weights = trained(Path(name), *shape, "tracking.metrics.step_time=waits")
            assert work.wait is slowed
            assert found["forward"] == found["backward"] == found["optimizer"] == 0, (shape, found)
            assert STEPS * least <= found["communication"] <= clock - began, (shape, found)
            _, others = trained(Path(name), *shape, "tracking.metrics.step_time=none")
            assert all(map(torch.equal, weights, others))


if __name__ == "__main__":
    sys.exit(fork_group(check, WORLD))
