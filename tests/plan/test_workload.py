"""What a job computes in numbers: against the counts of the model, and by hand."""

from pathlib import Path

import pytest

from setpoint.model.config import TransformerConfig
from setpoint.model.parameters import count_parameters_of
from setpoint.plan.memory import rank_memory
from setpoint.plan.topology import (
    Topology,
    coordinates,
    draw,
    index_along,
    members,
    shards_of,
    stages_of,
)
from setpoint.plan.workload import Workload

from ..train.small import small_job

MODELS = {
    "plain": (),
    "tied": ("model.tie_embeddings=true",),
    "experts": ("model.moe={experts: 4, shared_experts: 1}",),
    "latent": ("model.mla={kv_rank: 16, rope_head_dim: 4, nope_head_dim: 8, value_head_dim: 8}",),
}


@pytest.mark.parametrize("name", list(MODELS))
def test_parameters_and_flops_are_those_of_the_model(tmp_path: Path, name: str) -> None:
    job = small_job(tmp_path, *MODELS[name])
    model = job.model
    assert isinstance(model, TransformerConfig)
    length = job.batch.sequence_length
    counts = count_parameters_of(model, 257)
    workload = Workload.of(job, 257)
    assert workload.parameters == counts.parameters
    # As the formula `palm`, in which attention is not causal.
    products = sum(sum(workload.kinds[each].products) for each in workload.order)
    assert products == counts.in_products
    assert workload.layers == model.layers
    flops = sum(workload.kinds[each].forward_flops for each in workload.order)
    attended = sum(workload.kinds[each].attention_flops for each in workload.order)
    assert flops - attended == 2 * counts.in_products
    full = sum(2 * kind.pair * length for kind in (workload.kinds[n] for n in workload.order))
    assert attended == pytest.approx(full * (length + 1) / (2 * length))


def test_ranks_hold_all_of_a_model_together(tmp_path: Path) -> None:
    workload = Workload.of(small_job(tmp_path), 257)
    for topology in (
        Topology(shard=3, accumulation=4),
        Topology(tensor=2, shard=2),
        Topology(pipeline=2, accumulation=4),
    ):
        ranks = range(topology.world_size)
        numbers = [shards_of(workload, topology, rank).numbers for rank in ranks]
        # Norms are whole on all ranks of `tensor`.
        whole = 0
        if topology.tensor > 1:
            whole = sum(
                weight.numbers * weight.times
                for kind in workload.order
                for weight in workload.kinds[kind].weights
                if weight.division == "whole"
            )
        assert sum(numbers) == workload.parameters + whole * (topology.tensor - 1)
        assert rank_memory(workload, topology, 0).total > 0
    cut = stages_of(workload, Topology(pipeline=2))
    assert [part for rank in cut for stage in rank for part in stage] == list(
        range(len(workload.order))
    )


def test_ranks_that_divide_experts_divide_their_adapters(tmp_path: Path) -> None:
    quantized = "quantize: {type: fp8, group_size: 8}"
    adapter = f"adapter={{type: dora, rank: 2, targets: [experts], {quantized}}}"
    job = small_job(tmp_path, *MODELS["experts"], adapter)
    workload = Workload.of(job, 257)
    weights = [each for kind in workload.order for each in workload.kinds[kind].weights]
    trained = sum(weight.numbers * weight.times for weight in weights if weight.is_trained)
    for topology in (Topology(shard=2, expert=2), Topology(tensor=2, expert=2)):
        ranks = [shards_of(workload, topology, rank) for rank in range(2)]
        assert sum(rank.numbers for rank in ranks) == trained > 0
    # Experts take a byte a number, and four for each square of 64.
    packed = [each for each in weights if len(each.shape) == 3 and not each.is_trained]
    assert packed and all(each.stored * 16 == each.numbers * 17 for each in packed)
    whole = sum(weight.stored * weight.times for weight in weights)
    ranks = [shards_of(workload, Topology(shard=2, expert=2), rank) for rank in range(2)]
    assert whole <= sum(rank.stored for rank in ranks) <= whole * 1.05  # what makes rows even


def test_overrides_are_those_of_the_topology(tmp_path: Path) -> None:
    flags = ("memory.activation_checkpointing.type=operators", "parallel.world_size=8",
             "parallel.shard=2", "parallel.tensor=2", "batch.global_size=32")  # fmt: skip
    job = small_job(tmp_path, *flags, without=("micro_size", "accumulation"))
    topology = Topology.of(job)
    typed = [each.removeprefix("--") for each in topology.overrides()]
    again = small_job(tmp_path, "parallel.world_size=8", *typed, without=("micro_size",))
    assert Topology.of(again) == topology
    assert str(topology.recompute) == "operators:attention+exchange+matmul"


def test_the_mesh_of_a_hundred_thousand_ranks() -> None:
    degrees = {"pipeline": 16, "replicate": 1, "shard": 782, "ring": 1, "ulysses": 1, "tensor": 8}
    at = coordinates(degrees, 99_999)
    assert at == {
        "pipeline": 15, "replicate": 0, "shard": 769, "ring": 0, "ulysses": 0, "tensor": 7
    }  # fmt: skip
    assert members(degrees, ["tensor"], 99_999) == list(range(99_992, 100_000))
    assert index_along(degrees, ["shard", "tensor"], 99_999) == 769 * 8 + 7
    rows = draw(degrees, 99_999)
    assert [row[:3] for row in rows] == [
        ("pipeline", "16", "15"), ("shard", "782", "769"), ("tensor", "8", "7")
    ]  # fmt: skip
    assert rows[1][3] == "93847 93855 ... 99991 [99999] 100007 ... 100095"
