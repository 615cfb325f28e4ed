"""What rules need: which of those that need torch are named as skipped, and for which jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from setpoint.config import ConfigError
from setpoint.config.resolving.checks import verify
from setpoint.train.config import Job

from ..small import small_job

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
    skipped = [str(each) for each in verify(job, ()).skipped]
    assert any("need a GPU" in text for text in skipped) is wanted


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
    skipped = [str(each) for each in verify(small_job(tmp_path, *flags), ()).skipped]
    assert any("optimizer patterns" in text for text in skipped) is wanted


@pytest.mark.parametrize(
    ("flag", "wanted"),
    [
        ("memory.activation_checkpointing=full", False),
        ("memory.activation_offload={}", True),
        ("memory.empty_cache=9 steps", True),
    ],
)
def test_memory(flag: str, wanted: bool, tmp_path: Path) -> None:
    job = small_job(tmp_path, flag, "parallel.device=auto")
    skipped = [str(each) for each in verify(job, ()).skipped]
    assert any("need a GPU" in text for text in skipped) is wanted


def test_every_rule_says_what_it_refuses() -> None:
    known = Job.__setpoint__
    names = [name for name in (*known.checks, *known.deads) if ":" in name]
    assert len(names) > 50
    for name in names:
        line = (getattr(Job, name).__doc__ or "").partition("\n")[0]
        assert line and not line.startswith(("Whether", "What", "Find", "Look")), name
