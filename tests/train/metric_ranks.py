"""Run by test_row_metrics.py in a process of its own: two ranks log what one rank logs."""

import math
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import setpoint.train.run as running
from setpoint.config import resolve
from setpoint.model.config import ModelConfig
from setpoint.parallel.config import Parallel
from setpoint.parallel.world import World, world_of
from setpoint.shapes.batch import BySource, Count, StepBatch
from setpoint.train.config import Job
from setpoint.train.run import train
from setpoint.train.step_sync import count_over_ranks

from ..support.ranks import fork
from ..support.variants import known, sections
from . import test_by_source, test_logged_metrics
from .small import loop_of, small_job
from .test_logged_metrics import logged

WORLD, STEPS = 2, 2
COMMON = (
    f"duration={STEPS} steps", "model.dropout=0", "model.layers=2", "evaluation=null",
    "model.tie_embeddings=true", "optimizer.clip_norm=0.01",
    "tracking.metrics.grad_norms=[groups, layers]",
    "tracking.metrics.param_norms=[model, groups, layers]",
    "tracking.metrics.update_ratios=[model, groups, layers]",
)  # fmt: skip
SHAPES = (
    ("parallel.replicate=2", "batch.micro_size=1"),
    ("parallel.shard=2", "batch.micro_size=1"),
    ("parallel.tensor=2",),
    ("parallel.pipeline=2",),
)


def sources_of(folder: Path, ranks: int) -> list[BySource]:
    """Sums of each source in the first steps of a mixture; nothing is trained."""
    flags = ("batch.micro_size=1", f"batch.accumulation={4 // ranks}", "optimizer.lr=1e-30")
    loop = loop_of(test_by_source.job_of(folder, *flags, weights=True))
    return [loop.step().by_source for _ in range(STEPS)]


def norms_of(folder: Path, *flags: str) -> list[dict[str, Any]]:
    """The norms of each step."""
    loop = loop_of(small_job(folder, *COMMON, *flags))
    assert loop.engine.norms is not None
    norms = loop.engine.norms
    return [{"grad_norm": loop.step().grad_norm, **norms.columns()} for _ in range(STEPS)]


def same_sources(folder: Path, alone: list[BySource]) -> None:
    """Each source has the sequences, targets and nats that it has on one rank."""
    calls, total = [0], World.sum

    def counted(self: World, *tensors: torch.Tensor) -> None:
        calls[0] += len(tensors)
        total(self, *tensors)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "sum", counted)
        found = sources_of(folder, WORLD)
    for one, two in zip(alone, found, strict=True):
        assert (one.sequences, one.targets) == (two.sequences, two.targets)
        assert two.nats == pytest.approx(one.nats, rel=1e-6)
    assert calls[0] == STEPS, "one sum of what a step found out"
    assert sum(sum(one.sequences) for one in alone) == 4 * STEPS


def same_norms(folder: Path, alone: list[dict[str, Any]]) -> None:
    """Whatever the ranks divide, the norms are those of one rank."""
    for shape in SHAPES:
        found = norms_of(folder, f"parallel.world_size={WORLD}", *shape)
        for one, two in zip(alone, found, strict=True):
            assert one.keys() == two.keys()
            for key, value in one.items():
                assert two[key] == pytest.approx(value, rel=1e-5), (shape, key)


def same_logs(folder: Path, rank: int, alone: list[dict[str, Any]]) -> None:
    """The callback is on the second rank alone; a checkpoint has what all ranks logged."""
    flags = ("parallel.world_size=2", "batch.accumulation=1", "logging.ranks=[1]")
    with pytest.MonkeyPatch.context() as patch:
        if rank == 0:
            patch.setattr(running, "package_callbacks", lambda run: [])
        for until in (7, None):
            train(test_logged_metrics.job_of(folder, *flags), directory=folder / "two", until=until)
    for one, other in zip(alone, logged(folder / "two"), strict=True):
        assert math.isclose(one.pop("token_mean"), other.pop("token_mean"), abs_tol=1e-9)
        assert one == other


def rows_exchange_nothing(folder: Path) -> None:
    """Steps without rows have no collective for metrics."""
    calls, all_of = [0], World.all_of

    def counted(self: World, value: object) -> list[object]:
        calls[0] += 1
        return all_of(self, value)

    exchanges: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "all_of", counted)
        for every in (1, 6):
            flags = ("parallel.world_size=2", "batch.accumulation=1", "duration=6 steps")
            calls[0] = 0
            quiet = small_job(folder, *flags, f"tracking.every={every}", "evaluation=null")
            train(quiet, directory=folder / f"quiet-{every}")
            exchanges.append(calls[0])
    assert exchanges[0] == exchanges[1]


def counts_are_exact(rank: int) -> None:
    """Beyond the integers that fp32 holds."""
    batch = StepBatch((), (), Count(2**40 + rank, 3, 0.5), BySource((rank, 3), (5, 2**40)))
    found = count_over_ranks(batch, world_of(resolve(Parallel(device="cpu"))))
    assert found[:2] == (Count(2**41 + 1, 6, 1.0), BySource((1, 6), (10, 2**41)))


def check(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    own = known(ModelConfig, test_logged_metrics.VARIANTS)
    added = sections(Job, logging=test_logged_metrics.Logging.Config)
    with tempfile.TemporaryDirectory() as name, own, added:
        folder = Path(name)
        sources, norms = sources_of(folder, 1), norms_of(folder)
        rows = logged(train(test_logged_metrics.job_of(folder)).directory)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
        counts_are_exact(rank)
        same_sources(folder, sources)
        same_norms(folder, norms)
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(WORLD)}
        shared = [name]
        dist.broadcast_object_list(shared, src=0)
        same_logs(Path(shared[0]), rank, rows)
        rows_exchange_nothing(Path(shared[0]))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(fork(check, WORLD))
