"""Several ranks train an adapter as one rank does, and send nothing of what is frozen."""

from __future__ import annotations

import pytest

from ..forks import forked

SHAPES = ("shard=1", "shard=2", "tensor=2", "pipeline=2", "ring=2")


def test_frozen_weights_are_not_summed() -> None:
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
