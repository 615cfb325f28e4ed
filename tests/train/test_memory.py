from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from setpoint.config import RunError
from setpoint.train.loop import Loop
from setpoint.train.memory import enough_memory
from setpoint.train.run import train

from .small import small_job


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
    ],
    ids=["Python", "CUDA", "CPU"],
)
def test_too_little_memory_is_said_in_words(tmp_path: Path, error: Exception) -> None:
    job = small_job(tmp_path)
    words = r"too little memory for batch.micro_size = \d+"
    with pytest.raises(RunError, match=words), enough_memory(job):
        raise error


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="shape"), enough_memory(small_job(tmp_path)):
        raise RuntimeError("shape mismatch")


def test_a_model_that_is_too_large_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    job = small_job(tmp_path, "model.dim=4000000000", "model.heads=2", "model.head_dim=8",
                    "model.ffn_dim=8")  # fmt: skip
    with pytest.raises(RunError, match="too little memory"):
        train(job)
    assert not (tmp_path / "runs").exists()


def test_a_crash_is_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Loop, "update", crash)
    with pytest.raises(RuntimeError, match="a bug"):
        train(small_job(tmp_path, "name=crash"), tmp_path / "crash")
    last = json.loads((tmp_path / "crash" / "events.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["error"]) == ("fault", "RuntimeError('a bug')")
