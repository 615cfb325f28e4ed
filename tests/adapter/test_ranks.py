"""Several ranks train an adapter as one rank does, and send nothing of what is frozen."""

import pytest

from ..support.forks import forked

SHAPES = ("shard=1", "shard=2", "tensor=2", "pipeline=2", "ring=2")


def test_frozen_weights_are_not_summed_and_bytes_are_as_planned() -> None:
    forked("tests.adapter.adapter_ranks")


@pytest.mark.slow
@pytest.mark.parametrize("case", ["lora", "dora", "merged again and again", "quantized base"])
def test_two_ranks_train_what_one_does(case: str) -> None:
    forked("tests.parallel.equal_ranks", "2", *SHAPES, case)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", ["lora", "merged again", "two, dora", "quantized", "two, quantized"]
)
def test_ranks_divide_experts_with_adapters(case: str) -> None:
    forked("tests.parallel.equal_ranks", "4", "shard=4,expert=2", f"divided experts, {case}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "shape"),
    [("2", "tensor=2,expert_tensor=2"), ("4", "shard=2,tensor=2,expert_tensor=2")],
)
@pytest.mark.parametrize("case", ["lora", "quantized", "two, dora", "two, quantized"])
def test_ranks_divide_the_width_of_experts_with_adapters(ranks: str, shape: str, case: str) -> None:
    forked("tests.parallel.equal_ranks", ranks, shape, f"divided experts, {case}")
