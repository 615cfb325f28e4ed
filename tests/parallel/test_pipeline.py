"""Stages of a pipeline train what one rank does, and go on from each other's checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from setpoint.config import RunError
from setpoint.parallel import device
from setpoint.parallel.pipeline import Pipeline
from setpoint.parallel.pipelining import SCHEDULES, Pipelining
from setpoint.parallel.world import World, noise_axes

from ..support.forks import forked
from ..train.small import small_job
from .equal_ranks import CASES as EVERY
from .equal_ranks import EXPERTS
from .test_equal import compare
from .test_pipelining import CUT

V_SHAPED = "pipeline=2,pipelining.schedule=zbv_zero_bubble"
splits = pytest.mark.skipif(
    any(device.schedule_problems(Pipelining(schedule="zbv_zero_bubble"))),
    reason="needs a newer torch",
)
CASES = ("tied embeddings", "uneven rows", "experts with auxiliary losses")


@splits
def test_stages_train_what_one_rank_does() -> None:
    cases = (*CASES[1:], "compiled by aot_eager")
    said = compare(2, V_SHAPED, *cases)
    assert all(f"{case}, {V_SHAPED}: equal" in said for case in cases)


def resume(*arguments: str) -> None:
    """Stages go on from a checkpoint of one rank, and one rank from theirs."""
    said = forked("tests.parallel.pipeline_resume", *arguments)
    assert "resumed in both directions" in said


def test_stages_go_on_from_one_rank_and_one_rank_from_them() -> None:
    resume(
        "model.tie_embeddings=true",
        "model.moe.experts=4",
        "model.moe.router=sigmoid_top_k",
        "model.embedding_dropout=0.5",
    )


def test_stages_draw_other_random_numbers(tmp_path: Path) -> None:
    config = small_job(tmp_path, *CUT).parallel
    worlds = [
        World(torch.device("cpu"), degrees=config.degrees, coordinates={"pipeline": at},
              noise_axes=noise_axes(config)) for at in range(2)
    ]  # fmt: skip
    # Those of the first are those of one rank.
    assert [world.noise_rank for world in worlds] == [0, 1]


def test_what_fails_in_a_stage_is_raised_as_it_is() -> None:
    """PyTorch wraps it into a description of tensors."""
    failure = RunError("the data weighs its targets")

    class Failing:
        def step(self, *given: object, **named: object) -> None:
            try:
                raise failure
            except RunError as error:
                raise RuntimeError("[Stage 0] failed to run forward") from error

    pipeline: Any = object.__new__(Pipeline)
    pipeline.stages, pipeline.has_first, pipeline.has_last = [], True, True
    pipeline.microbatches, pipeline._shape, pipeline._schedule = 2, (1, 1), Failing()
    with pytest.raises(RunError) as caught:
        pipeline.run((1, 1), None)
    assert caught.value is failure


@pytest.mark.slow
def test_a_model_of_ones_own_is_cut_into_stages() -> None:
    resume("own")


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_all_schedules_train_what_one_rank_does(schedule: str) -> None:
    compare(2, f"pipeline=2,pipelining.schedule={schedule}", "plain", "experts with biases", "muon")


@pytest.mark.slow
def test_a_pipeline_trains_what_one_rank_does_in_every_case() -> None:
    # What is a graph, and what divides experts, has tests of its own.
    names = [name for name in EVERY if name not in EXPERTS and name != "whole graph"]
    compare(2, *names, "pipeline=2")


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["pipeline=4", "pipeline=2,shard=2", "pipeline=2,replicate=2"])
def test_four_ranks_train_what_one_does(shape: str) -> None:
    compare(4, shape, *CASES, "plain", "muon", "clipping, z-loss, label smoothing")


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["tensor=2", "ring=2", "ulysses=2", "shard=2,expert=2"])
def test_pipelines_go_with_other_axes(shape: str) -> None:
    cases = CASES[2:] if "expert" in shape else (CASES[0], CASES[2])
    compare(4, f"pipeline=2,{shape}", *cases)


def test_an_older_torch_has_no_backward_pass_in_two_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "version", lambda name: "2.11.0+cu130")
    (problem,) = device.schedule_problems(Pipelining(schedule="dual_pipe_v"))
    assert problem.message == (
        "needs torch 2.13 or later for backward passes in two parts; this is 2.11.0+cu130"
    )
