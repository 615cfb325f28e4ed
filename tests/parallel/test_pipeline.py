"""Stages of a pipeline train what one rank does, and go on from each other's checkpoints."""

from __future__ import annotations

import subprocess
import sys

import pytest

from setpoint.parallel.pipelining import SCHEDULES

from ..conftest import ROOT
from .test_equal import compare

V_SHAPED = "pipeline=2,pipelining.schedule=zbv_zero_bubble"
CASES = ("tied embeddings", "uneven rows", "experts with auxiliary losses")


def test_stages_train_what_one_rank_does() -> None:
    said = compare(2, V_SHAPED, *CASES[1:])
    assert all(f"{case}, {V_SHAPED}: equal" in said for case in CASES[1:])


def test_stages_go_on_from_one_rank_and_one_rank_from_them() -> None:
    flags = ("model.tie_embeddings=true", "model.moe.experts=4", "model.moe.router=sigmoid_top_k")
    command = [sys.executable, "-m", "tests.parallel.pipeline_resume", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "resumed in both directions" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_all_schedules_train_what_one_rank_does(schedule: str) -> None:
    compare(2, f"pipeline=2,pipelining.schedule={schedule}", "plain", "experts with biases", "muon")


@pytest.mark.slow
def test_a_pipeline_trains_what_one_rank_does_in_every_case() -> None:
    compare(2, "pipeline=2")


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["pipeline=4", "pipeline=2,shard=2", "pipeline=2,replicate=2"])
def test_four_ranks_train_what_one_does(shape: str) -> None:
    compare(4, shape, *CASES, "plain", "muon", "clipping, z-loss, label smoothing")
