"""Several ranks train what one rank trains: losses, norms and weights, for each way to divide."""

from __future__ import annotations

import pytest

from ..support.forks import forked

FEW = (
    "uneven rows", "experts with biases", "muon", "gradients summed in fp32",
    "replicated parameters", "a stream in the order of its file",
)  # fmt: skip


def compare(ranks: int, *cases: str) -> str:
    return forked("tests.parallel.equal_ranks", str(ranks), *cases)


def test_two_ranks_train_what_one_does() -> None:
    said = compare(2, *FEW)
    assert "uneven rows, shard=1: equal" in said and "muon, shard=2: equal" in said


def test_two_ranks_divide_experts() -> None:
    shapes = ("shard=2,expert=2", "tensor=2,expert_tensor=2", "replicate=2,expert=2")
    compare(2, *shapes, "divided experts, capacity")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_train_what_one_does_in_every_case(ranks: int) -> None:
    compare(ranks)


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
