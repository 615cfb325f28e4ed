"""The memory of a step as a dry run gives it, and as real ranks have it: `python -m plan.memory`.

Each job is planned by one process without its ranks, and then trained for some steps by as many
ranks on this machine, forked from one process. Compared are the bytes of tensors at their peak by
operators and, beside it, the highest resident memory of the rank's process above that before.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
from pathlib import Path

import torch.distributed as dist
from tests.plan.measured import measured_run
from tests.support.ranks import fork

from harness import options, record
from setpoint.config.composition import compose
from setpoint.parallel.world import world_of
from setpoint.plan.dry_run import dry_run
from setpoint.train.config import Job

BOUND = 0.1
"""Relative difference of the two peaks."""
COMMON = ("parallel.device=cpu", "evaluation=null", "batch.global_size=8")
SIZES = ("model.dim=256", "model.layers=6", "model.heads=4", "batch.sequence_length=256")
JOBS: dict[str, tuple[int, tuple[str, ...]]] = {
    "one rank": (1, ()),
    "one rank, chunked loss": (1, ("loss=chunked_cross_entropy",)),
    "one rank, recomputed": (1, ("memory.activation_checkpointing=full",)),
    "bf16 with masters": (
        1,
        ("precision.params=bf16", "precision.compute=bf16", "precision.master=fp32"),
    ),
    "replicas 2": (2, ()),
    "shard 2": (2, ("parallel.shard=2",)),
    "shard 2, accumulation 2": (2, ("parallel.shard=2", "batch.accumulation=2")),
    "tensor 2": (2, ("parallel.tensor=2",)),
    "pipeline 2": (2, ("parallel.pipeline=2", "batch.accumulation=4")),
    "shard 4": (4, ("parallel.shard=4",)),
    "shard 2 x tensor 2": (4, ("parallel.shard=2", "parallel.tensor=2")),
    "replicas 2 x shard 2": (4, ("parallel.replicate=2", "parallel.shard=2")),
}


def main(given: list[str] | None = None) -> int:
    """Print both peaks of each job; status 1 where one is further off than the bound."""
    chosen = options(__doc__, given, jobs=list(JOBS), small=False)
    print(f"{'job':28} {'ranks':>5} {'planned':>10} {'measured':>10} {'ratio':>6} {'resident':>10}")
    ratios: list[float] = []
    for name in chosen.jobs:
        ranks, flags = job_named(name, chosen.small)
        planned, measured, resident = compare(ranks, flags)
        ratios.append(planned / measured)
        print(
            f"{name:28} {ranks:>5} {planned / 2**20:>7.1f}MiB {measured / 2**20:>7.1f}MiB "
            f"{planned / measured:>6.3f} {resident / 2**20:>7.1f}MiB",
            flush=True,
        )
    worst = max(abs(ratio - 1) for ratio in ratios)
    record(chosen, "plan.memory", {
        "peak memory of a dry run over that of real ranks; bound 10 %":
            f"{len(ratios)} jobs: {min(ratios):.3f} to {max(ratios):.3f}"
    })  # fmt: skip
    print(f"furthest off: {worst:.1%} (bound {BOUND:.0%})")
    return int(worst > BOUND)


def job_named(name: str, small: bool) -> tuple[int, tuple[str, ...]]:
    """The ranks of one of JOBS, and its flags; small ones have next to no arithmetic."""
    ranks, flags = JOBS[name]
    sizes = ("model.dim=32", "model.layers=2", "model.heads=2") if small else SIZES
    return ranks, (*COMMON, *sizes, *flags, f"parallel.world_size={ranks}")


def compare(ranks: int, flags: tuple[str, ...]) -> tuple[int, int, int]:
    """Plan and train a job."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def plan(rank: int, store: str) -> None:
            peak = dry_run(_job(flags), rank).peak.total
            (folder / f"planned-{rank}").write_text(str(peak))

        def train(rank: int, store: str) -> None:
            if ranks > 1:
                meeting = dist.FileStore(store, ranks)
                dist.init_process_group("gloo", store=meeting, rank=rank, world_size=ranks)
            before = _resident()
            job = _job(flags)
            peak = measured_run(job, world_of(job.parallel)).peak.total
            (folder / f"measured-{rank}").write_text(json.dumps([peak, _resident() - before]))
            if ranks > 1:
                dist.barrier()
                dist.destroy_process_group()

        if fork(plan, ranks) or fork(train, ranks):
            raise SystemExit(1)
        rows = [
            (
                int((folder / f"planned-{rank}").read_text()),
                *json.loads((folder / f"measured-{rank}").read_text()),
            )
            for rank in range(ranks)
        ]
    return max(rows, key=lambda row: abs(row[0] / row[1] - 1))


def _job(flags: tuple[str, ...]) -> Job:
    return compose(Job, "tiny", flags=list(flags)).resolve()


def _resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main())
