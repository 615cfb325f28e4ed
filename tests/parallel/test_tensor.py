"""Ranks that divide matrices train what one rank trains, and what divides is checked before."""

from pathlib import Path

import pytest

from setpoint.config import ConfigError

from ..support.forks import forked
from ..support.snapshots import refused
from ..train.small import small_job
from .test_equal import compare

SHAPES = ("tensor=2,sequence_parallel=false", "tensor=2", "tensor=2,loss_parallel=false")
FOUR = ("tensor=2,shard=2,sequence_parallel=false", "tensor=2,replicate=2", "tensor=2,ring=2")


def test_models_of_all_kinds_are_divided() -> None:
    forked("tests.parallel.tensor_ranks")


def test_messages_are_fused_with_products() -> None:
    forked("tests.parallel.async_tensor_ranks")


def test_two_ranks_of_matrices_train_what_one_does() -> None:
    assert "equal over" in compare(2, "clipping, z-loss, label smoothing", SHAPES[1])


@pytest.mark.slow
def test_two_ranks_of_matrices_train_what_one_does_in_every_case() -> None:
    compare(2, *SHAPES)


@pytest.mark.slow
def test_four_ranks_of_matrices_train_what_one_does() -> None:
    cases = ("plain", "tied embeddings", "experts with auxiliary losses", "uneven rows",
             "packed documents", "compiled", "weights in bf16 with masters")  # fmt: skip
    compare(4, *cases, *FOUR)
    compare(4, "muon", *FOUR[:2])
    compare(4, "two key-value heads", "tensor=4,sequence_parallel=false", "tensor=4")


@pytest.mark.parametrize(
    "flags",
    [
        ("model.heads=6", "model.dim=24"),
        ("model.heads=12", "model.dim=24", "model.kv_heads=6"),
        ("model.heads=4", "model.ffn_dim=30"),
        ("model.heads=4", "model.moe={experts: 2, shared_experts: 1, expert_dim: 6}"),
        ("model.heads=4", "model.ffn_dim=48",
         "adapter={type: qlora, rank: 2, quantize: {type: nf4, group_size: 8}}"),
        ("model.heads=4", "batch.sequence_length=18", "parallel.sequence_parallel=true"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_does_not_divide_is_refused(tmp_path: Path, flags: tuple[str, ...]) -> None:
    ranks = ("parallel.world_size=4", "parallel.tensor=4", "parallel.device=cpu")
    with refused(ConfigError):
        small_job(tmp_path, *ranks, *flags)
