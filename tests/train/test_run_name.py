"""The run directory's name: the same for the same identity, another one for another."""

from __future__ import annotations

from pathlib import Path

import pytest

from setpoint.config import SetpointError
from setpoint.config.record.record import fingerprint
from setpoint.train.config import Job
from setpoint.train.run_name import draw_seed, run_directory_of

from .small import small_job


def test_workspace_experiment_name_fingerprint(tmp_path: Path) -> None:
    job = small_job(tmp_path, "experiment=first")
    short = fingerprint(job)[:8]
    assert run_directory_of(job) == str(tmp_path / "runs" / "first" / f"small-{short}")
    job = small_job(tmp_path, "workspace=w")
    assert run_directory_of(job) == f"w/small-{short}"


def test_only_identity_gives_another_directory(tmp_path: Path) -> None:
    base = ("schedule=constant",)
    first = run_directory_of(small_job(tmp_path, *base))
    for flag in ("duration=5 steps", "checkpoint.keep=9", "tracking.every=3", "evaluation=null"):
        assert run_directory_of(small_job(tmp_path, *base, flag)) == first
    for flag in ("seed=2", "model.layers=2", "user.note=x", "data.held_out=0.3"):
        assert run_directory_of(small_job(tmp_path, *base, flag)) != first


@pytest.mark.parametrize("flag", ["name", "experiment", "workspace"])
def test_a_directory_that_no_system_can_make_is_refused(tmp_path: Path, flag: str) -> None:
    for text in ("a" * 300, "a/" * 3000 if flag == "workspace" else "b" * 4000):
        job = small_job(tmp_path, f"{flag}={text}")
        with pytest.raises(SetpointError, match="at most 255 bytes") as caught:
            run_directory_of(job)
        assert len(str(caught.value)) < 500


def test_only_a_null_seed_is_drawn() -> None:
    given, null, other = Job(seed=3), Job(seed=None), Job(seed=None)
    for draft in (given, null, other):
        draw_seed(draft)
    assert given.seed == 3
    assert isinstance(null.seed, int)
    assert null.seed != other.seed
