"""Several ranks train what one rank trains: losses, norms and weights, for each way to divide."""

from pathlib import Path

import pytest
import torch

from setpoint.config import ConfigError, resolve
from setpoint.parallel.config import Parallel
from setpoint.parallel.world import World, reader_of

from ..support.forks import forked
from ..support.snapshots import refused
from ..train.small import small_job
from .equal_ranks import CASES as JOBS

FEW = (
    "uneven rows", "experts with biases", "muon", "replicated parameters",
    "noise on embeddings, uneven rows",
    "a stream in the order of its file", "batches that grow",
)  # fmt: skip


def compare(ranks: int, *cases: str) -> str:
    return forked("tests.parallel.equal_ranks", str(ranks), *cases)


def test_two_ranks_train_what_one_does() -> None:
    said = compare(2, *FEW)
    assert "uneven rows, shard=1: equal" in said and "muon, shard=2: equal" in said


def test_two_ranks_divide_experts() -> None:
    compare(2, "shard=2,expert=2", "tensor=2,expert_tensor=2", "divided experts, capacity")


# All cases on four ranks take a quarter of an hour.
PIECES = 8


@pytest.mark.slow
@pytest.mark.parametrize("piece", range(PIECES))
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_train_what_one_does_in_every_case(ranks: int, piece: int) -> None:
    compare(ranks, *list(JOBS)[piece::PIECES])


BORDERLINE = {
    "pipeline=2,ring=2": ("plain",),
    "pipeline=2,tensor=2": ("plain",),
    "tensor=2,ring=2": ("experts balanced by sequence",),
    "tensor=4": ("two key-value heads",),
    "shard=2,tensor=2,expert=2,expert_tensor=2": ("divided experts, recomputed activations",),
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", BORDERLINE)
def test_weights_that_rounding_moves_apart_are_equal_in_float64(shape: str) -> None:
    """In fp32 these differ by up to 2e-4 after 20 steps, more than other shapes."""
    assert "equal over" in compare(4, "float64", shape, *BORDERLINE[shape])


EIGHT = {
    "replicate=4,shard=2,expert=4": ("divided experts, biases",),
    "pipeline=2,shard=2,tensor=2": ("plain",),
    "shard=2,ring=2,ulysses=2": ("packed documents",),
    "replicate=2,shard=4,expert=4": ("divided experts, biases",),
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", EIGHT)
def test_eight_ranks_train_what_one_does(shape: str) -> None:
    assert "equal over" in compare(8, shape, *EIGHT[shape])


def test_blocks_of_quantized_experts_are_not_cut(tmp_path: Path) -> None:
    widths = ("model.moe={experts: 4, expert_dim: 64}", "parallel.tensor=4", "model.heads=4",
              "model.dim=32")  # fmt: skip
    flags = (*widths, *RANKS, "parallel.shard=2", "parallel.expert_tensor=4")
    quantize = "{{type: nf4, group_size: {}, exclude: [attention]}}"
    adapter = f"adapter={{{{type: lora, rank: 2, quantize: {quantize}}}}}"
    small_job(tmp_path, *flags, adapter.format(16), without=("micro_size",))
    with refused(ConfigError):
        small_job(tmp_path, *flags, adapter.format(32), without=("micro_size",))


RANKS = ("parallel.world_size=8", "batch.global_size=16", "batch.accumulation=1")


@pytest.mark.parametrize(
    "degrees",
    ["shard=8 expert=8", "shard=8 expert=3", "shard=2 expert=6", "shard=2 tensor=4 expert_tensor=2",
     "shard=8 expert=2"],
)  # fmt: skip
def test_degrees_that_do_not_fit_are_refused(tmp_path: Path, degrees: str) -> None:
    flags = ["model.moe.experts=6", "model.dim=18", "model.positions=none", *RANKS]
    flags += [f"parallel.{degree}" for degree in degrees.split()]
    with refused(ConfigError):
        small_job(tmp_path, *flags, without=("micro_size",))


def test_experts_of_several_ranks_on_one_rank_say_how_to_start_them(tmp_path: Path) -> None:
    with refused(ConfigError):
        small_job(tmp_path, "model.moe.experts=6", "parallel.expert=2")


def test_two_ranks_divide_an_evaluation() -> None:
    forked("tests.parallel.shared_evaluation")


CASES = [
    ("shard", "reshard=2"),
    ("shard", "sharding.layers_per_unit=2"),
    ("shard", "sharding.offload=true"),
    ("replicate", "bucket_size=5"),
    ("replicate", "engine=deepspeed"),
    ("ring", "ring_split=contiguous"),
    ("tensor", "loss_parallel=true"),
    ("pipeline", "pipelining.schedule=gpipe"),
]


@pytest.mark.parametrize(("axis", "option"), CASES)
def test_an_option_of_many_ranks_is_accepted_on_one_and_dead_on_an_axis_of_one(
    tmp_path: Path, axis: str, option: str
) -> None:
    job = small_job(tmp_path, f"parallel.{axis}=-1", f"parallel.{option}")
    assert job.parallel.world_size == 1
    if option != "engine=deepspeed":
        with refused(ConfigError):
            small_job(tmp_path, f"parallel.{axis}=1", f"parallel.{option}")


def test_one_rank_reads_weights_as_many_are_to(tmp_path: Path) -> None:
    given = resolve(Parallel(load_weights="broadcast"))
    assert reader_of(given, World(torch.device("cpu"))) is None
