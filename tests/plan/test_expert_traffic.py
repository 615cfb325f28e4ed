"""What ranks send for experts that they divide: against a dry run of even loads."""

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

from setpoint.memory.config import CheckpointedParts, Full, Operators
from setpoint.plan.topology import Recompute, Topology
from setpoint.plan.traffic import traffic
from setpoint.plan.workload import Workload
from setpoint.train.config import Job

from ..support.cases import few
from ..support.ranks import fork
from ..train.small import small_job

MODEL = ("model.moe={experts: 4, top_k: 2}", "batch.global_size=8", "evaluation=null",
         "parallel.device=cpu")  # fmt: skip
HALVES = ("parallel.shard=4", "parallel.expert=2")
BOTH = ("parallel.tensor=2", "parallel.expert=2")
JOBS: dict[str, tuple[int, tuple[str, ...]]] = {
    "experts 2": (2, ("parallel.shard=2", "parallel.expert=2")),
    "experts 2 of 4, recomputed": (4, (*HALVES, "memory.activation_checkpointing=full")),
    "experts 2, tokens divided": (2, (*BOTH, "parallel.sequence_parallel=true")),
    "widths 2": (2, ("parallel.tensor=2", "parallel.expert_tensor=2")),
    "experts 2 of 4, outside": (4, (*HALVES, "parallel.expert_mesh_order=expert_major")),
    "experts 2 and widths 2": (4, ("parallel.shard=2", *BOTH, "parallel.expert_tensor=2")),
}


def job_of(folder: Path, name: str) -> Job:
    ranks, flags = JOBS[name]
    flags = (*MODEL, *flags, f"parallel.world_size={ranks}")
    return small_job(folder, *flags, without=("micro_size", "accumulation"))


def by_kind(rows: Iterable[tuple[str, int, int, int]]) -> dict[tuple[str, int], tuple[int, int]]:
    """Calls and bytes by kind and number of ranks: experts lie along other axes by their names."""
    found: defaultdict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
    for kind, ranks, calls, size in rows:
        if size > 1000:  # not the norm and the sums of a step
            found[kind, ranks][0] += calls
            found[kind, ranks][1] += size
    return {key: (calls, size) for key, (calls, size) in found.items()}


def planned(job: Job, rank: int = 0) -> dict[tuple[str, int], tuple[int, int]]:
    rows = traffic(Workload.of(job, 257), Topology.of(job), rank)
    return by_kind((row.kind, row.ranks, row.calls, row.bytes) for row in rows)


def test_each_row_travels_there_and_back(tmp_path: Path) -> None:
    job = job_of(tmp_path, "experts 2")
    workload = Workload.of(job, 257)
    tokens = job.batch.micro_size * job.batch.sequence_length
    rows = tokens * 2 * workload.layers
    size = rows * (4 * workload.dim * workload.formats.compute + 2 * 4) + workload.layers * 4 * 8
    assert planned(job)["all_to_all", 2] == (7 * workload.layers, size)


def test_saved_exchanges_are_not_repeated(tmp_path: Path) -> None:
    """48 layers send 528 messages in a recomputed micro-batch, and 336 where they are saved."""
    job, found = job_of(tmp_path, "experts 2"), list[int]()
    workload, topology = Workload.of(job, 257), Topology.of(job)
    for policy in (
        Recompute(Full),
        Recompute(Operators, ("matmul",)),
        Recompute(Operators, ("exchange",)),
        Recompute(CheckpointedParts, ("attention",)),
    ):
        rows = traffic(workload, topology._replace(recompute=policy), 0)
        found.append(sum(row.calls for row in rows if row.kind == "all_to_all") // workload.layers)
    assert [48 * each for each in found] == [528, 528, 336, 336]


@pytest.mark.parametrize("name", few(JOBS, ["experts 2"]))
def test_a_dry_run_sends_as_much(tmp_path: Path, name: str) -> None:
    from setpoint.plan.dry_run import dry_run

    job, last = job_of(tmp_path, name), JOBS[name][0] - 1

    def run(_: int, store: str) -> None:
        del store
        found = dry_run(job, last)
        rows = [(row.kind, row.ranks, row.calls, row.bytes) for row in found.traffic]
        (tmp_path / "found").write_text(json.dumps(rows))

    assert fork(run, 1) == 0
    found, expected = by_kind(json.loads((tmp_path / "found").read_text())), planned(job, last)
    assert set(found) == set(expected)
    for key, (calls, size) in found.items():
        if key[0] == "all_reduce":  # small sums of a step, among the rows or not
            assert (calls, size) == (
                pytest.approx(expected[key][0], abs=1),
                pytest.approx(expected[key][1], rel=0.02),
            )
        else:
            assert (calls, size) == expected[key], key
