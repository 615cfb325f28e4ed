"""What a job sets for the process, and takes back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch._dynamo

from setpoint.train.opening import settings_of

from ..small import small_job


def state() -> tuple[bool, int]:
    return torch.are_deterministic_algorithms_enabled(), torch._dynamo.config.recompile_limit


def test_both_are_set_and_taken_back_however_it_ends(tmp_path: Path) -> None:
    before = state()
    job = small_job(tmp_path, "deterministic=true", "compile={}", "compile.recompile_limit=3")
    with settings_of(job):
        assert state() == (True, 3)
    assert state() == before
    with pytest.raises(ValueError, match="^x$"), settings_of(job):
        raise ValueError("x")
    assert state() == before
    with settings_of(small_job(tmp_path)):
        assert state() == before
