"""Checks that need torch are named as skipped only where there is something to look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from setpoint.config import ConfigError
from setpoint.config.resolving.verify import verify
from setpoint.train.when import fused, unlisted

from .small import small_job

FUSED = ("optimizer=sgd", "optimizer.implementation=fused")
SHORT = ("precision.params=bf16", "precision.compute=bf16")
IMPORTED = "model={type=import, target=torch.nn.Linear, in_features=8, out_features=8}"
PATTERN = ("optimizer.no_decay_patterns=[norm]",)


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ((*FUSED, *SHORT), True),
        (FUSED, False),
        ((*FUSED, *SHORT, "precision.master=fp32"), False),
        (("optimizer=sgd", *SHORT), False),
        ((*FUSED, *SHORT, "parallel.device=cuda"), False),
        (("optimizer.implementation=fused", *SHORT), False),
    ],
)
def test_fused_and_short(flags: tuple[str, ...], wanted: bool, tmp_path: Path) -> None:
    job = small_job(tmp_path, "parallel.device=auto", *flags)
    assert fused(job) is wanted
    skipped = [str(each) for each in verify(job, ()).skipped]
    assert any("fused optimizer" in text for text in skipped) is wanted


def test_fused_and_short_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="does not update bf16 weights on a CPU"):
        small_job(tmp_path, *FUSED, *SHORT, "parallel.device=cpu")
    job = small_job(tmp_path, *FUSED, *SHORT, "parallel.device=auto")
    for there, count in ((False, 1), (True, 0)):
        monkeypatch.setattr("torch.cuda.is_available", lambda there=there: there)
        assert len(verify(job, {"torch"}).problems) == count


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ((), False),
        (PATTERN, False),
        ((*PATTERN, IMPORTED), True),
        ((IMPORTED,), False),
    ],
)
def test_patterns(flags: tuple[str, ...], wanted: bool, tmp_path: Path) -> None:
    assert unlisted(small_job(tmp_path, *flags)) is wanted


@pytest.mark.parametrize(
    ("flag", "wanted"),
    [
        ("memory.activation_checkpointing=full", False),
        ("memory.activation_offload={}", True),
        ("memory.optimizer_offload={}", True),
        ("memory.empty_cache=9 steps", True),
    ],
)
def test_memory(flag: str, wanted: bool, tmp_path: Path) -> None:
    job = small_job(tmp_path, flag, "parallel.device=auto")
    assert job.memory.spares_device is wanted
    skipped = [str(each) for each in verify(job, ()).skipped]
    assert any("memory can be spared" in text for text in skipped) is wanted
