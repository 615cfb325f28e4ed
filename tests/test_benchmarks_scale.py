"""The benchmarks of several ranks run in small: both sides learn the same, and all is printed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .conftest import BENCHMARKS


def run(*given: str) -> str:
    command = [sys.executable, "-m", *given, "--model", "dust"]
    done = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_both_sides_of_replicas_learn_the_same() -> None:
    """The program itself compares their losses."""
    given = ("--axes", "replicate", "--rounds", "2", "--steps", "1", "--free")
    said = run("scale.overhead", *given)
    assert said.startswith("replicate, 2 ranks: ") and "losses agree" in said


@pytest.mark.slow
def test_both_sides_of_every_axis_learn_the_same() -> None:
    said = run("scale.overhead", "--ranks", "4", "--rounds", "2", "--steps", "1", "--free")
    assert [line.partition(",")[0] for line in said.splitlines()] == [
        "replicate", "shard", "hybrid", "tensor", "pipeline", "ring", "ulysses", "expert",
    ]  # fmt: skip
