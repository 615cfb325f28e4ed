"""Peak memory of a rank by arithmetic, by a dry run, and on real ranks: `python -m plan.memory`.

Each job is planned by one process without its ranks, and then trained for some steps by as many
ranks on this machine, forked from one process. Compared are the bytes of tensors at their peak, by
operators; beside them stands the growth of the highest resident memory of the process.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch.distributed as dist
from tests.plan.measured import measured_run
from tests.support.ranks import fork

from harness import options, record
from setpoint.config.composition import compose
from setpoint.parallel.world import world_of
from setpoint.plan.dry_run import dry_run
from setpoint.plan.memory import rank_memory
from setpoint.plan.topology import Topology
from setpoint.plan.workload import Workload
from setpoint.train.config import Job

BOUND = 0.1
"""Relative difference of two peaks."""
COMMON = ("parallel.device=cpu", "evaluation=null", "batch.global_size=8")
SIZES = ("model.dim=256", "model.layers=6", "model.heads=4", "batch.sequence_length=256")
SMALL = ("model.dim=32", "model.layers=2", "model.heads=2")
"""Next to no arithmetic, for a test."""
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


class Peaks(NamedTuple):
    """Peak of a rank in bytes; `counted` is that of the first rank by arithmetic."""

    counted: int
    planned: int
    measured: int
    resident: int


def main(given: list[str] | None = None) -> int:
    """Print the peaks of each job; status 1 if two differ by more than the bound."""
    chosen = options(__doc__, given, jobs=list(JOBS), small=False)
    print(f"{'job, MiB':28} {'arithmetic':>11} {'dry run':>8} {'measured':>9} {'resident':>9}")
    counted: list[float] = []
    planned: list[float] = []
    for name in chosen.jobs:
        ranks, flags = JOBS[name]
        sizes = SMALL if chosen.small else SIZES
        peaks = peaks_of(ranks, (*COMMON, *sizes, *flags, f"parallel.world_size={ranks}"))
        counted.append(peaks[0].counted / peaks[0].planned)
        worst = max(peaks, key=lambda rank: abs(rank.planned / rank.measured - 1))
        planned.append(worst.planned / worst.measured)
        figures = [f"{each / 2**20:9.1f}" for each in worst]
        print(f"{name:28}   {' '.join(figures)}", flush=True)
    record(chosen, "plan.memory", {
        shows: f"{len(ratios)} jobs: {min(ratios):.3f} to {max(ratios):.3f}"
        for shows, ratios in (
            ("peak memory of a dry run over that of real ranks; bound 10 %", planned),
            ("peak memory by arithmetic over that of a dry run; bound 10 %", counted),
        )
    })  # fmt: skip
    largest = max(abs(ratio - 1) for ratio in planned + counted)
    print(f"largest difference: {largest:.1%} (bound {BOUND:.0%})")
    return int(largest > BOUND)


def peaks_of(ranks: int, flags: tuple[str, ...]) -> list[Peaks]:
    """Plan a job and train it; the peaks of each rank."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def plan(rank: int, store: str) -> None:
            del store
            job = _job(flags)
            counted = rank_memory(Workload.of(job), Topology.of(job)).total
            found = (counted, dry_run(job, rank).peak.total)
            (folder / f"planned-{rank}").write_text(json.dumps(found))

        def train(rank: int, store: str) -> None:
            if ranks > 1:
                meeting = dist.FileStore(store, ranks)
                dist.init_process_group("gloo", store=meeting, rank=rank, world_size=ranks)
            before = _resident()
            job = _job(flags)
            peak = measured_run(job, world_of(job.parallel)).peak.total
            (folder / f"measured-{rank}").write_text(json.dumps((peak, _resident() - before)))
            if ranks > 1:
                dist.barrier()
                dist.destroy_process_group()

        if fork(plan, ranks) or fork(train, ranks):
            raise SystemExit(1)
        return [
            Peaks(
                *json.loads((folder / f"planned-{rank}").read_text()),
                *json.loads((folder / f"measured-{rank}").read_text()),
            )
            for rank in range(ranks)
        ]


def _job(flags: tuple[str, ...]) -> Job:
    return compose(Job, "tiny", flags=list(flags)).resolve()


def _resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main())
