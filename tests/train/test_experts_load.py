"""The load of experts is counted over a size that is part of the fingerprint."""

from __future__ import annotations

from pathlib import Path

import pytest

from setpoint.config import ConfigError, fingerprint
from setpoint.train.config import Job
from setpoint.train.run import train

from .small import rows, small_job

EXPERTS = (
    "model.moe={experts=4, expert_dim=8, capacity_factor=1.0, gradient_scale=true}",
    "model.dropout=0", "duration=8 steps", "evaluation=null", "checkpoint.every=never",
)  # fmt: skip


def losses(job: Job) -> list[float]:
    return [row["loss"] for row in rows(train(job).directory) if row["kind"] == "train"]


def test_another_micro_size_is_another_run_or_the_same_one(tmp_path: Path) -> None:
    small = small_job(tmp_path, *EXPERTS)
    sizes = ("batch.micro_size=4", "batch.accumulation=1")
    other = small_job(tmp_path, *EXPERTS, *sizes, "name=other")
    same = small_job(tmp_path, *EXPERTS, *sizes, "model.moe.load_sequences=2", "name=same")
    assert fingerprint(small) == fingerprint(same) != fingerprint(other)
    found = losses(small)
    assert losses(same) == pytest.approx(found, rel=1e-5)
    assert losses(other) != pytest.approx(found, rel=1e-3)


def test_dense_models_do_not_care(tmp_path: Path) -> None:
    sizes = ("batch.micro_size=4", "batch.accumulation=1")
    assert fingerprint(small_job(tmp_path)) == fingerprint(small_job(tmp_path, *sizes))


def test_parts_must_fit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="3 does not divide the 2 sequences of a micro-batch"):
        small_job(tmp_path, *EXPERTS, "model.moe.load_sequences=3")
