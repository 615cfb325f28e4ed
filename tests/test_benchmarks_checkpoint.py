"""The benchmarks of checkpoints run in small."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.mark.slow
def test_memory_of_consolidation_is_bounded() -> None:
    """The program itself compares it with the bound."""
    command = [sys.executable, "-m", "checkpoint.consolidate", "--megabytes", "400"]
    done = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["to", "huggingface", "whole"]
