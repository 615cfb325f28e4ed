"""What goes wrong on several ranks without a word, or ends a run in words of no use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from setpoint.config import ConfigError

from ..conftest import ROOT
from ..support.forks import forked
from ..train.small import small_job

WRONG = {
    # The gradient of its all_gather is wrong on gloo where what comes back is not contiguous.
    r"distributed\.nn\.functional|distributed\.nn import": "_functional_collectives",
    # Its thread's collectives meet those of training on the default group.
    r"\basync_save\(": "a process group of its own",
    # It refuses gradient accumulation, and counts optimizer state wrongly.
    r"\bMemTracker\b|FSDPMemTracker": "setpoint's own meter",
    # It warns on each rank where FSDP2 has divided what the axis tensor had.
    r"\.full_tensor\(\)": "shapes.placed.whole_of",
    # Dividing a model within it fails, or takes forty times as long.
    r"\bFakeTensorMode\b": "the meta device, on which models are divided",
}


ALLOWED = "dry_run.py"
"""The file that enters `FakeTensorMode` after models are divided."""


def test_ranks_draw_the_first_weights_of_one_rank() -> None:
    """DTensor's own initialization gives each rank the same part on a CPU."""
    forked("tests.parallel.trap_ranks", "weights")


@pytest.mark.slow
def test_layers_that_divide_matrices_are_compiled() -> None:
    """Backward of a compiled layer fails on a gradient of a collective under way."""
    forked("tests.parallel.trap_ranks", "compiled")


def test_fp16_is_refused_on_a_cpu_for_ranks_as_well(tmp_path: Path) -> None:
    """It computes 200 times slower there than fp32."""
    flags = ("parallel.world_size=2", "parallel.shard=2", "batch.accumulation=1")
    with pytest.raises(ConfigError) as caught:
        small_job(tmp_path, *flags, "precision.compute=fp16", "parallel.device=cpu")
    assert [problem.path for problem in caught.value.problems] == ["precision.compute"]


@pytest.mark.parametrize("pattern", WRONG)
def test_what_is_wrong_in_pytorch_is_not_used(pattern: str) -> None:
    found = [
        str(path)
        for path in (ROOT / "src").rglob("*.py")
        if re.search(pattern, path.read_text(encoding="utf-8")) and path.name != ALLOWED
    ]
    assert found == [], f"use {WRONG[pattern]}"
