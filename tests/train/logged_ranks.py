"""Run by test_logged_metrics.py in a process of its own: ranks log what one rank logs."""

import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

import setpoint.train.run as running
from setpoint.config.schema.class_info import add_section
from setpoint.model.config import ModelConfig
from setpoint.parallel.world import World
from setpoint.train.config import Job
from setpoint.train.run import train

from ..support.ranks import fork
from ..support.variants import known
from .small import small_job
from .test_logged_metrics import VARIANTS, Logging, job_of, logged

WORLD = 2


def check(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    add_section(Job, "logging", Logging.Config)
    with tempfile.TemporaryDirectory() as name, known(ModelConfig, VARIANTS):
        alone = logged(train(job_of(Path(name))).directory)
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(WORLD)}
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
        place = [name]
        dist.broadcast_object_list(place, src=0)
        folder = Path(place[0])
        # The callback is on the second rank alone; a checkpoint has what all ranks logged.
        added = running.package_callbacks
        if rank == 0:
            running.package_callbacks = lambda run: []
        flags = ("parallel.world_size=2", "batch.accumulation=1", "logging.ranks=[1]")
        for until in (7, None):
            train(job_of(folder, *flags), folder / "two", until=until)
        two = logged(folder / "two")
        for one, other in zip(alone, two, strict=True):
            assert abs(one.pop("token_mean") - other.pop("token_mean")) < 1e-9
            assert one == other

        running.package_callbacks = added
        calls, all_of = [0], World.all_of

        def counted(self: World, value: object) -> list[object]:
            calls[0] += 1
            return all_of(self, value)

        World.all_of = counted
        exchanges: list[int] = []
        for every in (1, 6):
            quiet = ("duration=6 steps", f"tracking.every={every}", "evaluation=null")
            calls[0] = 0
            train(small_job(folder, *flags[:2], *quiet), folder / f"quiet-{every}")
            exchanges.append(calls[0])
        assert exchanges[0] == exchanges[1]  # where nothing is logged, rows exchange nothing
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(fork(check, WORLD))
