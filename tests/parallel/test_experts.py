"""Runs whose experts lie on several ranks: resumes, what is read at the start, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from setpoint.config import ConfigError

from ..support.forks import forked
from ..train.small import small_job


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("shard=2,expert=2", "1"),
        pytest.param("replicate=2,expert=2", "1", marks=pytest.mark.slow),
        pytest.param("shard=2,expert=2", "replicate=4,expert=4", marks=pytest.mark.slow),
        pytest.param("1", "shard=2,expert=2", marks=pytest.mark.slow),
        pytest.param("shard=2", "shard=4,expert=2", marks=pytest.mark.slow),
        pytest.param("shard=4,expert=2", "1", marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_with_its_experts_on_other_ranks(before: str, after: str) -> None:
    forked("tests.parallel.resumed_experts", before, after)


@pytest.mark.slow
@pytest.mark.parametrize("after", ["1", "shard=2,expert=2"])
def test_adapters_of_experts_whose_width_ranks_divide_go_on_elsewhere(after: str) -> None:
    adapter = "adapter={type: dora, rank: 2, b_std: 0.1, quantize: {type: nf4, group_size: 8}}"
    forked("tests.parallel.resumed_experts", "tensor=2,expert_tensor=2", after, adapter)


def test_blocks_of_quantized_experts_are_not_cut(tmp_path: Path) -> None:
    widths = (
        "model.moe={experts: 4, expert_dim: 64}",
        "parallel.tensor=4",
        "model.heads=4",
        "model.dim=32",
    )
    flags = (*widths, *RANKS, "parallel.shard=2", "parallel.expert_tensor=4")
    adapter = "adapter={{type: lora, rank: 2, quantize: {{type: nf4, group_size: {}}}}}"
    small_job(tmp_path, *flags, adapter.format(16), without=("micro_size",))
    with pytest.raises(ConfigError) as refused:
        small_job(tmp_path, *flags, adapter.format(32), without=("micro_size",))
    (problem,) = refused.value.problems
    assert problem.path == "parallel.expert_tensor"
    assert "16 of the 64 inputs of layers.0.feed_forward.experts.down" in problem.message
    assert tuple(problem.valid) == ("1", "2 (with parallel.tensor = 2)")
    assert "adapter.quantize.group_size = 16" in problem.hint


RANKS = ("parallel.world_size=8", "batch.global_size=16", "batch.accumulation=1")


@pytest.mark.parametrize(
    ("flags", "path", "said", "valid"),
    [
        (("shard=8", "expert=8"), "parallel.expert", "6 experts cannot be divided among 8 ranks",
         ("2", "1")),
        (("shard=8", "expert=3"), "parallel.expert", "lies on 8 ranks, 8 (shard)",
         ("1", "2", "4", "8")),
        (("shard=2", "expert=6"), "parallel.expert", "lies on 2 ranks, 2 (shard)",
         ("1", "2", "4", "8")),
        (("shard=2", "tensor=4", "expert_tensor=2"), "parallel.expert_tensor",
         "2 ranks cannot divide experts where 4 divide matrices", ("1", "4")),
        (("shard=8", "expert=2"), "parallel.expert",
         "leaves 4 ranks to shard 3 experts, but 4 divides neither this number nor dim = 18",
         ("1",)),
    ],
)  # fmt: skip
def test_degrees_that_do_not_fit_are_refused(
    tmp_path: Path, flags: tuple[str, ...], path: str, said: str, valid: tuple[str, ...]
) -> None:
    model = ("model.moe.experts=6", "model.dim=18")
    degrees = [f"parallel.{flag}" for flag in flags]
    with pytest.raises(ConfigError) as refused:
        small_job(tmp_path, *model, *RANKS, *degrees, without=("micro_size",))
    found = [problem for problem in refused.value.problems if problem.path == path]
    assert [said in problem.message for problem in found] == [True]
    assert tuple(found[0].valid) == valid
