"""Runs whose experts lie on several ranks: resumes, what is read at the start, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from setpoint.config import ConfigError

from ..forks import forked
from ..train.small import small_job


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("shard=2,expert=2", "1"),
        pytest.param("1", "shard=2,expert=2", marks=pytest.mark.slow),
        pytest.param("shard=2", "shard=4,expert=2", marks=pytest.mark.slow),
        pytest.param("shard=4,expert=2", "1", marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_with_its_experts_on_other_ranks(before: str, after: str) -> None:
    forked("tests.parallel.resumed_experts", before, after)


RANKS = ("parallel.world_size=8", "batch.global_size=16", "batch.accumulation=1")


@pytest.mark.parametrize(
    ("flags", "path", "said", "valid"),
    [
        (("shard=8", "expert=8"), "parallel.expert", "6 experts cannot be divided among 8 ranks",
         ("2", "1")),
        (("shard=8", "expert=3"), "parallel.expert", "lies on 8 ranks, 8 (shard)",
         ("1", "2", "4", "8")),
        (("shard=2", "expert=6"), "parallel.expert", "lies on 2 ranks, 2 (shard)", ("1", "2")),
        (("shard=2", "tensor=4", "expert_tensor=2"), "parallel.expert_tensor",
         "2 ranks cannot divide experts where 4 divide matrices", ("1", "4")),
        (("shard=8", "expert=2"), "parallel.expert",
         "leaves 4 ranks to shard 3 experts, and divides neither these nor dim = 18 by 4", ("1",)),
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
