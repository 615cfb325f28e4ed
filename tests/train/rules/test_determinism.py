"""What cannot be deterministic is said before anything is built."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from setpoint.config.resolving.checks import verify
from setpoint.model.attention.selection import BACKENDS
from setpoint.parallel.config import CUBLAS_VARIABLE
from setpoint.train.rules.model import workspace_problems

from ...support.snapshots import compare
from ..small import small_job
from .refusals import refusal

GPU = ("deterministic=true", "parallel.device=cuda")


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CUBLAS_VARIABLE, ":0:0")
    kernel = refusal(tmp_path, *GPU, "model.attention_backend=sdpa_cudnn")
    monkeypatch.setenv(CUBLAS_VARIABLE, ":16:8")
    compiled = refusal(tmp_path, *GPU, "compile={mode: max-autotune}")
    compare("train/determinism", f"{kernel}\n\n{compiled}")


@pytest.mark.parametrize("name", sorted(set(BACKENDS) - {"sdpa_cudnn"}))
def test_backends_with_a_deterministic_backward_pass(tmp_path: Path, name: str) -> None:
    model = f"model.attention_backend={name}", "model.head_dim=16"
    assert small_job(tmp_path, *GPU, *model, "precision.compute=bf16")


def test_a_workspace_matters_on_a_gpu_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CUBLAS_VARIABLE, ":0:0")
    job = small_job(tmp_path, "deterministic=true")
    assert small_job(tmp_path, "parallel.device=cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert verify(job, {"torch"}).problems == []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = [problem.message for problem in verify(job, {"torch"}).problems]
    assert any(f"{CUBLAS_VARIABLE} = :0:0" in text for text in found)
    assert len(list(workspace_problems(job))) == 1
    for value, count in ((":4096:8", 0), (":16:8", 0), (":4096:2:16:8", 1), ("", 1)):
        monkeypatch.setenv(CUBLAS_VARIABLE, value)
        assert len(list(workspace_problems(job))) == count
    monkeypatch.delenv(CUBLAS_VARIABLE)
    assert list(workspace_problems(job)) == []
