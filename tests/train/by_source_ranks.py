"""Run by test_by_source.py in a process of its own: two ranks know of all sources what one does."""

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

from setpoint.parallel.world import World
from setpoint.shapes.batch import BySource

from ..support.ranks import fork
from .small import loop_of
from .test_by_source import job_of

WORLD, STEPS = 2, 3


def steps(folder: Path, ranks: int) -> list[BySource]:
    """What the first steps of a mixture have of each source; nothing is trained."""
    flags = ("batch.micro_size=1", f"batch.accumulation={4 // ranks}", "optimizer.lr=1e-30")
    job = job_of(folder, *flags, weights=True)
    loop = loop_of(job)
    return [loop.step().by_source for _ in range(STEPS)]


def check(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        alone = steps(folder, 1)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
        calls, total = [0], World.sum

        def counted(self: World, *tensors: torch.Tensor) -> None:
            calls[0] += len(tensors)
            total(self, *tensors)

        World.sum = counted
        for one, two in zip(alone, steps(folder, WORLD), strict=True):
            assert (one.sequences, one.targets) == (two.sequences, two.targets)
            expected = torch.tensor(one.nats, dtype=torch.float64)
            found = torch.tensor(two.nats, dtype=torch.float64)
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
        assert calls[0] == 2 * STEPS
        assert sum(sum(one.sequences) for one in alone) == 4 * STEPS
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(fork(check, WORLD))
