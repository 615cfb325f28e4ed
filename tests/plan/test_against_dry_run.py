"""The arithmetic of a rank against a dry run of it: parts, peak, and traffic row by row."""

import json
from pathlib import Path

import pytest
import torch

from setpoint.plan.dry_run import dry_run
from setpoint.plan.memory import rank_memory
from setpoint.plan.topology import Topology
from setpoint.plan.traffic import Traffic, traffic
from setpoint.plan.workload import Workload

from ..support.cases import few
from ..support.ranks import fork
from ..train.small import small_job

WIDE = (
    "model.dim=128", "model.layers=4", "model.heads=4", "model.tie_embeddings=false",
    "batch.sequence_length=128", "batch.global_size=16", "evaluation=null", "parallel.device=cpu",
)  # fmt: skip
FULL, OPERATORS = (f"memory.activation_checkpointing={each}" for each in ("full", "operators"))
BF16 = ("precision.params=bf16", "precision.compute=bf16", "precision.master=fp32")
FLOAT8 = ("precision.compute=bf16", "precision.float8.emulate=true", "model.ffn_dim=256")
STAGES = ("parallel.pipeline=2", "batch.accumulation=4")
SPLIT = (
    "parallel.pipeline=2", "parallel.pipelining.schedule=interleaved_zero_bubble", "model.layers=8"
)  # fmt: skip
SEQUENCE = ("parallel.tensor=2",)
EXPERTS = ("parallel.shard=2", "parallel.expert=2", "model.moe={experts: 4}")
JOBS: dict[str, tuple[int, int, tuple[str, ...]]] = {
    "alone": (1, 0, ()),
    "whole layers again": (1, 0, (FULL,)),
    "attention again": (1, 0, ("memory.activation_checkpointing=parts",)),
    "operators": (1, 0, ("memory.activation_checkpointing=operators",)),
    "masters": (1, 0, BF16),
    "autocast": (1, 0, ("precision.compute=bf16",)),
    "experts": (1, 0, ("model.moe={experts: 4}",)),
    "scaled inputs of experts": (1, 0, ("model.moe={experts: 4, scale_inputs: true}",)),
    "replicas": (2, 1, ()),
    "shards": (2, 1, ("parallel.shard=2",)),
    "shards that do not divide": (3, 2, ("parallel.shard=3", "batch.global_size=12")),
    "shards in two micro-batches": (2, 0, ("parallel.shard=2", "batch.accumulation=2")),
    "masters in shards": (2, 0, ("parallel.shard=2", "batch.accumulation=2", *BF16)),
    "fp32 sums of bf16 shards": (2, 0, ("parallel.shard=2", *BF16[:2], "precision.reduce=fp32")),
    "bf16 gathered": (2, 0, ("parallel.shard=2", "batch.accumulation=2", BF16[1])),
    "float8 gathered": (2, 0, (*FLOAT8, "parallel.shard=2", "batch.accumulation=2")),
    "float8 by rows, again": (2, 0, (*FLOAT8, "precision.float8.recipe=rowwise", FULL)),
    "experts in float8": (2, 0, (*FLOAT8, "precision.float8={recipe: rowwise, experts: true}",
                                 *EXPERTS, "model.layers=8")),
    "experts whole on a rank, with masters": (2, 0, (*EXPERTS, *BF16)),
    "ring, operators": (2, 1, ("parallel.ring=2", OPERATORS)),
    "heads, operators": (2, 1, ("parallel.ulysses=2", OPERATORS)),
    "experts, operators": (2, 0, (BF16[1], *EXPERTS[:2], "model.layers=8", OPERATORS,
                                  "model.moe={experts: 8, top_k: 8, expert_dim: 32}")),
    "whole gradients": (2, 0, ("parallel.shard=2", "batch.accumulation=2",
                               "parallel.sharding.accumulation=unsharded")),
    "kept shards": (2, 0, ("parallel.shard=2", "parallel.reshard=false", "batch.accumulation=2")),
    "matrices": (2, 1, ("parallel.tensor=2",)),
    "matrices and sequences": (4, 3, ("parallel.shard=2", *SEQUENCE)),
    "matrices, again": (2, 1, (*SEQUENCE, FULL)),
    "ring": (2, 1, ("parallel.ring=2",)),
    "heads": (2, 1, ("parallel.ulysses=2",)),
    "ring and heads": (4, 3, ("parallel.ring=2", "parallel.ulysses=2")),
    "first stage": (2, 0, STAGES),
    "last stage": (2, 1, STAGES),
    "all stages at once": (2, 0, (*STAGES, "parallel.pipelining.schedule=gpipe")),
    "some backward passes split": (2, 1, (*SPLIT, "batch.accumulation=8")),
    "copies of shards": (4, 3, ("parallel.replicate=2", "parallel.shard=2")),
    "three axes": (8, 5, (*STAGES, "parallel.shard=2", "parallel.tensor=2")),
}  # fmt: skip
ON_GPU = ("parallel.device=cuda", "precision.compute=bf16", "parallel.shard=2", "model.kv_heads=2")
ISOLATED = "data.packing.isolate=true"
WINDOW = ("model.attention_pattern=[sliding]", "model.sliding_window=16")
CHUNKED = ("model.attention_pattern=[chunked]", "model.attention_chunk=16")
DROPPED = "model.attention_dropout=0.1"
CHUNKS = ("loss=chunked_cross_entropy", "loss.chunk_size=256")
GPU_JOBS: dict[str, tuple[str, ...]] = {
    "chunks": CHUNKS,
    "documents": (ISOLATED, OPERATORS),
    "chunks, documents, whole layers again": (*CHUNKS, ISOLATED, FULL),
    "a dense mask": (ISOLATED, "model.attention_backend=sdpa", *CHUNKS),
    "a window, as a kernel hides it": (*WINDOW, *CHUNKS),
    "a window, as a mask": (*WINDOW, "model.attention_backend=sdpa", *CHUNKS),
    "attention in chunks": (*CHUNKED, *CHUNKS),
    "attention in chunks, as a mask": (*CHUNKED, "model.attention_backend=sdpa", *CHUNKS),
    "attention dropout": (DROPPED, *CHUNKS),
    "attention dropout under a mask": (DROPPED, ISOLATED, *CHUNKS),
    "attention sinks": ("model.attention_sinks=true", *WINDOW, *CHUNKS),
    "chunks, documents, float8": (*CHUNKS, ISOLATED, OPERATORS, *FLOAT8[1:]),
}
JOBS |= {name: (2, 1, (*ON_GPU, *flags)) for name, flags in GPU_JOBS.items()}
QUICK = ("chunks, documents, whole layers again", "matrices and sequences")
SMALL = 1024
"""Bytes of a row: sums of losses, norms and counts are one row in the arithmetic."""


def rows_of(rows: list[Traffic]) -> dict[tuple[str, str, int], tuple[int, int]]:
    return {
        # Where all ranks of an axis divide the experts, a dry run finds the axis.
        (row.kind, row.axes.replace("expert", "shard"), row.ranks): (row.calls, row.bytes)
        for row in rows
        if row.bytes > SMALL and row.kind != "recv"
    }


@pytest.mark.parametrize("name", few(JOBS, QUICK))
def test_a_rank_holds_and_sends_what_is_counted(tmp_path: Path, name: str) -> None:
    ranks, rank, flags = JOBS[name]
    fixed = WIDE[:-1] if "parallel.device=cuda" in flags else WIDE
    flags = (*fixed, *flags, f"parallel.world_size={ranks}")
    job = small_job(tmp_path, *flags, without=("micro_size", "accumulation"))

    def run(_: int, store: str) -> None:
        del store
        (tmp_path / "found").write_text(json.dumps(dry_run(job, rank).to_json()))

    assert fork(run, 1) == 0
    found = json.loads((tmp_path / "found").read_text())
    workload, topology = Workload.of(job, 257), Topology.of(job)
    memory = rank_memory(workload, topology, rank)
    assert not memory.unknown
    for part in ("weights", "masters", "optimizer"):
        assert getattr(memory, part) == found["peak"][part]
    # Plans are those of torch 2.13, whose kernels keep less than older ones.
    rel = 0.1 if torch.__version__ >= "2.13" else 0.2
    assert memory.total == pytest.approx(found["peak"]["total"], rel=rel)
    for row in found["traffic"]:
        del row["sent"]
    counted = rows_of(traffic(workload, topology, rank))
    measured = rows_of([Traffic(**row) for row in found["traffic"]])
    assert counted.keys() == measured.keys()
    for key, (_, size) in counted.items():
        # Beside the sums of whole tensors there are small ones of losses and norms.
        assert abs(size - measured[key][1]) <= SMALL
