"""What a profile needs of other sections, said before anything is built."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from setpoint.config import ConfigError
from setpoint.config.resolving.checks import verify
from setpoint.train.run import train

from ...support.snapshots import compare
from ..small import small_job
from .refusals import refusals

REFUSED: dict[str, tuple[str, ...]] = {
    "a window beyond the run": ("profiling={skip=28}",),
    "one by tokens": ("duration=320 tokens", "profiling={active=4}"),
    "more cycles than there are": ("profiling={active=8, repeat=5}",),
    "a rank that is not there": ("profiling.ranks=[0, 1]",),
    "one of many that is not there": (
        "profiling.ranks=[8]", "parallel.world_size=8", "batch.global_size=32",
    ),
    "no ranks": ("profiling.ranks=[]",),
    "a snapshot on a processor": ("profiling.snapshot=true", "parallel.device=cpu"),
    "nothing to record": ("profiling.active=0",),
    "a negative wait": ("profiling.wait=-1",),
    "another system's name": ("profiling.record_shapes=true",),
    "pacing that paces nothing": ("resilience.gc={every=never, automatic=true}",),
    "a generation that is not there": ("resilience.gc.generation=3",),
    "another system's interval": ("resilience.gc.gc_freq=50",),
    "a formula that nobody knows": ("tracking.flops=chinchilla",),
    "no peak": ("tracking.peak_flops=0",),
}  # fmt: skip
TAKEN: tuple[tuple[str, ...], ...] = (
    # The last cycle is over with the last update.
    ("profiling={skip=5, wait=1, warmup=1, active=3, repeat=5}",),
    ("profiling={skip=25}",),
    # As many as there are, and some of them not whole.
    ("profiling={active=9, repeat=null}",),
    # Nobody knows how many updates there will be.
    ("duration=1 epochs", "schedule=constant", "profiling={skip=100000}"),
    ("profiling.snapshot=true",),
    ("profiling.ranks=null",),
)


def test_what_is_refused(tmp_path: Path) -> None:
    compare("train/profiling", refusals(tmp_path, REFUSED))


@pytest.mark.parametrize("flags", TAKEN)
def test_what_is_taken(tmp_path: Path, flags: tuple[str, ...]) -> None:
    assert small_job(tmp_path, *flags)


def test_a_snapshot_needs_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = small_job(tmp_path, "profiling.snapshot=true")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert [problem.path for problem in verify(job, {"torch"}).problems] == ["profiling.snapshot"]
    with pytest.raises(ConfigError, match="sees no GPU"):
        train(job)
    assert not (tmp_path / "runs").exists()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not verify(job, {"torch"}).problems
