"""Processes that die, and disks that fill up, in the middle of a save."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ..support.forks import Forks
from .crashed import (
    ACTIONS,
    CODES,
    clocks_that_go_back,
    crash_everywhere,
    fail_everywhere,
    record,
    short_writes,
)


def run(forks: Forks, mode: str, root: Path, *more: int) -> dict[str, Any]:
    script = Path(__file__).with_name("crashing.py")
    status, output = forks.run([str(script), mode, str(root), *map(str, more)], root.parent)
    assert status == 0, output
    return json.loads(output.splitlines()[-1])


def test_kill_at_random_moments(forks: Forks, tmp_path: Path) -> None:
    kills = 16
    result = run(forks, "random", tmp_path / "checkpoints", kills)
    assert result["kills"] == kills
    # The test would prove nothing if the kills had missed the saves.
    assert result["middle"] >= kills // 8
    assert result["steps"] >= kills // 4


def test_file_size_limit(forks: Forks, tmp_path: Path) -> None:
    result = run(forks, "limit", tmp_path / "checkpoints")
    assert "step 2 could not be saved" in result["message"]
    assert "File too large; step 1 is still there" in result["message"]
    assert "checkpoint.keep" in result["message"]
    assert result["intact"]
    assert result["step"] == 1
    assert result["then"] == [1, 2]


@pytest.mark.parametrize("name", ACTIONS)
def test_a_power_cut_anywhere(tmp_path: Path, name: str) -> None:
    """And a kill anywhere, which loses nothing; and another one while what is left is repaired."""
    recorded = record(ACTIONS[name], tmp_path / "run")
    counts = crash_everywhere(recorded, tmp_path / "trial", every=False)
    # Before, after, and some between.
    assert counts["states"] >= 4 and counts["repairs"] >= 4, counts


# The slow tests of the table of faults have all of them.
@pytest.mark.parametrize(
    ("name", "code", "goes_on"),
    [("a save of the best", "I/O error", True), ("replacing a checkpoint", "disk full", False)],
)
def test_any_operation_fails(tmp_path: Path, name: str, code: str, goes_on: bool) -> None:
    recorded = record(ACTIONS[name], tmp_path / "run")
    failed = fail_everywhere(recorded, tmp_path / "trial", CODES[code], goes_on)
    assert failed >= len(recorded.orders[0])


def test_short_writes(tmp_path: Path) -> None:
    assert short_writes(tmp_path) >= 40


def test_a_clock_that_goes_back(tmp_path: Path) -> None:
    assert clocks_that_go_back(tmp_path) == len(ACTIONS)
