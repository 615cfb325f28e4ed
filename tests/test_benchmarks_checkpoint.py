"""The benchmarks of checkpoints run in small."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import BENCHMARKS


@pytest.mark.slow
def test_memory_of_consolidation_is_bounded() -> None:
    """The program itself compares it with the bound."""
    command = [sys.executable, "-m", "checkpoint.consolidate", "--megabytes", "400"]
    done = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["to", "huggingface", "whole"]


def run(name: str, folder: Path) -> list[str]:
    given = ["--megabytes", "2", "--rounds", "2", "--folder", str(folder), "--free"]
    command = [sys.executable, "-m", f"checkpoint.{name}", *given]
    done = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert not list(folder.iterdir())
    return done.stdout.splitlines()


@pytest.mark.slow
def test_what_training_waits_for_is_printed(tmp_path: Path) -> None:
    size, bound = run("blocked", tmp_path)
    assert size.startswith("2 MB: ") and bound.startswith("bound: 10%: ")


@pytest.mark.slow
def test_speeds_beside_others_are_printed(tmp_path: Path) -> None:
    found = run("throughput", tmp_path)
    beside = [f"beside {name}" for name in ("safetensors", "dd", "dcp")]
    begins = [line.strip().partition(" of")[0].partition(":")[0] for line in found]
    assert begins[:-1] == ["save", *beside, "load", *beside]


@pytest.mark.slow
def test_memory_and_size_are_printed(tmp_path: Path) -> None:
    found = [line.partition(":")[0] for line in run("memory", tmp_path)]
    parts = ("save", "save in the background", "load", "on disk")
    assert found[:-1] == [f"2 MB, {part}" for part in parts]
