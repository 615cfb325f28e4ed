"""A step of one rank of many, without the others: what it allocates, sends and computes."""

import json
from pathlib import Path

import pytest
from torch import distributed

from setpoint.cli.check_plan import render_dry_run
from setpoint.model.config import TransformerConfig
from setpoint.model.parameters import training_flops
from setpoint.parallel.world import world_of
from setpoint.plan.dry_run import DryRun, dry_run, rows_by_rank
from setpoint.plan.meter import few_layers
from setpoint.train.config import Job

from ..model.huggingface_families import family_job
from ..support.cases import few
from ..support.ranks import fork
from ..support.snapshots import refused
from ..train.small import small_job
from .measured import measured_run

WIDE = ("model.dim=64", "model.layers=2", "batch.global_size=8", "evaluation=null")
EXPERTS = "model.moe={experts: 2, top_k: 2}"
"""Each token goes to all of them, so that their loads are even in a run as well."""
JOBS: dict[str, tuple[int, tuple[str, ...]]] = {
    "alone": (1, ("memory.activation_checkpointing=full",)),
    "sharded": (2, ("parallel.shard=2", "batch.accumulation=2")),
    "stages": (2, ("parallel.pipeline=2", "batch.accumulation=4")),
    "matrices": (2, ("parallel.tensor=2",)),
    "widths of experts": (2, (EXPERTS, "parallel.tensor=2", "parallel.expert_tensor=2")),
    "experts": (2, (EXPERTS, "parallel.shard=2", "parallel.expert=2")),
    "experts, tokens divided": (2, (EXPERTS, "parallel.tensor=2", "parallel.expert=2")),
    "experts outside, recomputed": (
        4,
        (
            EXPERTS, "parallel.shard=4", "parallel.expert=2",
            "parallel.expert_mesh_order=expert_major", "memory.activation_checkpointing=full",
        ),
    ),
    "experts and widths": (
        4,
        (
            EXPERTS, "parallel.shard=2", "parallel.tensor=2", "parallel.expert=2",
            "parallel.expert_tensor=2",
        ),
    ),
}  # fmt: skip


SIZES = ("micro_size", "accumulation")


def job_of(folder: Path, name: str) -> Job:
    ranks, flags = JOBS[name]
    flags = (*WIDE, *flags, "parallel.device=cpu", f"parallel.world_size={ranks}")
    return small_job(folder, *flags, without=SIZES)


@pytest.mark.parametrize("name", few(JOBS, ["alone"]))
def test_it_says_what_real_ranks_allocate_and_send(tmp_path: Path, name: str) -> None:
    ranks, job = JOBS[name][0], job_of(tmp_path, name)

    def write(found: DryRun, kind: str) -> None:
        (tmp_path / f"{kind}-{found.rank}").write_text(json.dumps(found.to_json()))

    def plan(rank: int, store: str) -> None:
        write(dry_run(job, rank), "planned")

    def train(rank: int, store: str) -> None:
        if ranks > 1:
            where = f"file://{store}"
            distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=ranks)
        write(measured_run(job, world_of(job.parallel)), "measured")
        if ranks > 1:
            distributed.barrier()

    assert fork(plan, ranks) == 0
    assert fork(train, ranks) == 0
    for rank in range(ranks):
        planned, measured = (
            json.loads((tmp_path / f"{kind}-{rank}").read_text())
            for kind in ("planned", "measured")
        )
        assert planned["peak"]["total"] == pytest.approx(measured["peak"]["total"], rel=0.02)
        fixed = ("weights", "masters", "optimizer", "gradients")
        assert [planned["peak"][each] for each in fixed] == [
            measured["peak"][each] for each in fixed
        ]
        assert planned["traffic"] == measured["traffic"]
        assert planned["flops"] == measured["flops"]


@pytest.mark.parametrize("kind", few(["transformer", "mixtral"], ["transformer"]))
def test_products_of_experts_are_counted(tmp_path: Path, kind: str) -> None:
    """Those of 24 more components: three matrices, forward and by both gradients."""
    counted: list[int] = []
    for width in (24, 48):
        if kind == "transformer":
            flags = ("model.moe={experts: 4, top_k: 2}", f"model.moe.expert_dim={width}")
            job = small_job(tmp_path, *flags)
            assert isinstance(job.model, TransformerConfig)
            layers, dim = job.model.layers, job.model.dim
        else:
            flags = ("model.overrides.num_hidden_layers=1",)
            job = family_job(tmp_path, kind, *flags, f"model.overrides.intermediate_size={width}")
            layers, dim = 1, 16
        counted.append(dry_run(job).flops)
    rows = job.batch.global_size * job.batch.sequence_length * 2
    assert counted[1] - counted[0] == rows * layers * dim * 24 * 3 * 2 * 3


SHARDED = ("parallel.world_size=2", "parallel.shard=2")
EXTENDED: dict[str, tuple[str, ...]] = {
    "alone": (),
    "bf16": ("precision={params: bf16, compute: bf16, master: fp32}", "batch.accumulation=4"),
    "sharded": (*SHARDED, "batch.accumulation=4"),
    "kept": (*SHARDED, "parallel.reshard=false", "batch.accumulation=4"),
    "recomputed": (*SHARDED, "memory.activation_checkpointing={type: full, every: 2}"),
    "matrices": (*SHARDED, "parallel.tensor=2", "parallel.world_size=4", "optimizer=lion"),
    "sequences": ("parallel={world_size: 4, ring: 2, ulysses: 2}",),
    "experts": (*SHARDED, "model.moe={experts: 4, every: 2}"),
    "divided experts": (*SHARDED, "model.moe={experts: 4, every: 2}", "parallel.expert=2"),
    "adapter": ("adapter={type: lora, rank: 2}", "optimizer=muon"),
}


@pytest.mark.parametrize("name", few(EXTENDED, ["alone"]))
def test_few_layers_and_micro_batches_say_what_all_take(tmp_path: Path, name: str) -> None:
    flags = (*WIDE, "model.layers=13", *EXTENDED[name], "parallel.device=cpu")
    if name in ("recomputed", "experts", "divided experts"):
        flags = (*flags, "model.layers=14")
    job = small_job(tmp_path, *flags, without=SIZES)
    whole, few = dry_run(job, all_layers=True), dry_run(job)
    assert few.layers is not None
    assert few._replace(layers=None, seconds=0) == whole._replace(seconds=0)


GROUPED = "groups: [{pattern: 'layers.12.', lr_multiplier: 0.5}]"


@pytest.mark.parametrize("patterns", ["frozen: ['layers.3.']", GROUPED])
def test_layers_that_differ_are_all_gone_through(tmp_path: Path, patterns: str) -> None:
    flags = (*WIDE, "model.layers=13", f"optimizer={{type: adamw, {patterns}}}")
    assert few_layers(small_job(tmp_path, *flags, without=SIZES), 257) is None


def test_a_thousand_ranks_by_hand(tmp_path: Path) -> None:
    flags = ("parallel.world_size=1024", "parallel.shard=1024", "batch.global_size=1024",
             "data.packing.isolate=true")  # fmt: skip
    job = small_job(tmp_path, *WIDE[:2], *WIDE[3:], *flags, without=SIZES)
    found = dry_run(job, 700)
    by_kind = {row.kind: row for row in found.traffic if row.kind != "all_reduce"}
    assert found.at["shard"] == 700
    # Weights of layers are gathered for the forward and for the backward pass, the embedding and
    # the output once; rows of matrices that do not divide are padded.
    assert by_kind["all_gather"].calls == 2 * 2 + 2
    assert by_kind["reduce_scatter"].calls == 2 + 2
    assert by_kind["reduce_scatter"].sent == round(by_kind["reduce_scatter"].bytes * 1023 / 1024)
    tokens, model = job.batch.sequence_length, job.model
    assert isinstance(model, TransformerConfig)
    counted = training_flops(model, "palm", vocab_size=257, sequence_length=tokens)
    assert found.flops == pytest.approx(counted * tokens, rel=0.1)


def test_what_cannot_be_planned_is_refused(tmp_path: Path) -> None:
    with refused():
        dry_run(small_job(tmp_path), 2)
    with refused():
        dry_run(small_job(tmp_path, "parallel={world_size: 2, engine: deepspeed}"))
    with refused():
        dry_run(small_job(tmp_path, "model.moe={experts: 4, capacity_factor: 1.5}"))
    with refused():
        dry_run(small_job(tmp_path, "model.moe={experts: 2, packed: false}"))
    offload = ("parallel.device=cuda", "memory.activation_offload.limit=0")
    with refused():
        dry_run(small_job(tmp_path, *offload))


def test_even_loads_lose_no_row_and_are_told(tmp_path: Path) -> None:
    sent = [rows_by_rank(rank, 3)(None, None, 257 * 2) for rank in range(3)]
    assert [to for to, _ in sent] == [[172, 171, 171]] * 3
    for rank, (_, received) in enumerate(sent):
        assert received == [to[rank] for to, _ in sent]
    found = dry_run(job_of(tmp_path, "experts"), 1)
    assert found.to_json()["even_loads"]
    assert "even loads" in render_dry_run(found)
    assert "even loads" not in render_dry_run(found._replace(even_loads=False))


def test_stages_with_an_adapter(tmp_path: Path) -> None:
    flags = ("parallel.pipeline=2", "parallel.world_size=2", "batch.accumulation=4")
    job = small_job(tmp_path, *WIDE, *flags, "adapter={type: lora, rank: 2}", without=SIZES)
    found = dry_run(job, 1)
    # The adapter alone is trained, and the optimizer keeps two numbers for each of its weights.
    assert 0 < found.peak.optimizer < found.peak.weights
