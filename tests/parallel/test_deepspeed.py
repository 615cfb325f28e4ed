"""Two ranks among which DeepSpeed divides what replicas hold train what one rank does."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from setpoint.cli.main import main
from setpoint.config import ConfigError
from setpoint.config.resolving.checks import verify
from setpoint.parallel.engines import zero_settings

from ..support.forks import forked
from ..support.snapshots import refused
from ..train.small import small_job

installed = pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="needs deepspeed: make deepspeed"
)
RANKS = ("parallel.world_size=2", "parallel.engine=deepspeed")


@installed
def test_two_ranks_of_zero_train_what_one_does() -> None:
    said = forked("tests.parallel.zero_ranks", "equal", "offload")
    assert said.count("equal over") >= 10


@installed
def test_checkpoints_go_from_each_engine_to_each_other() -> None:
    forked("tests.parallel.zero_ranks", "resumed", "loaded")


@installed
def test_no_rank_takes_a_step_that_is_not_finite() -> None:
    forked("tests.parallel.zero_ranks", "not_finite")


def test_a_missing_package_is_found_by_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = small_job(tmp_path, *RANKS)
    monkeypatch.setattr("setpoint.parallel.zero.find_spec", lambda name: None)
    (problem,) = verify(job, {"torch"}).problems
    assert problem.path == "parallel.engine"
    assert "pip install 'setpoint[deepspeed]'" in problem.message


def test_its_json_is_derived(tmp_path: Path) -> None:
    job = small_job(tmp_path, *RANKS, "optimizer.clip_norm=0.3", "batch.accumulation=4")
    found = zero_settings(job)
    assert found is not None
    assert found["gradient_clipping"] == 0.3 and found["gradient_accumulation_steps"] == 4
    assert found["train_micro_batch_size_per_gpu"] == job.batch.micro_size
    without = small_job(tmp_path, *RANKS, "optimizer.clip_norm=null")
    assert (zero_settings(without) or {})["gradient_clipping"] == 0.0
    assert zero_settings(small_job(tmp_path)) is None


def test_the_plan_has_its_json(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--world-size", "2", "--parallel.engine", "deepspeed")
    assert main(["check", "tiny", *flags, "--plan", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert plan["deepspeed"]["zero_optimization"]["stage"] == 2


def test_one_rank_has_nothing_to_divide(tmp_path: Path) -> None:
    assert not small_job(tmp_path, "parallel.engine=deepspeed").parallel.uses_deepspeed
    with refused(ConfigError):
        small_job(tmp_path, *RANKS, "parallel.engine.offload=all")
