"""Processes that die, and disks that fill up, in the middle of a save."""

from __future__ import annotations

import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from ..forks import Forks
from .crashed import (
    ACTIONS,
    ALONE,
    CODES,
    ROOT,
    alone,
    begin,
    crash_everywhere,
    fail_everywhere,
    look,
    record,
    recover,
    shared,
)
from .disk import Log, Operation, lay_out, tree_of, watched


def run(forks: Forks, mode: str, root: Path, *more: int) -> dict[str, Any]:
    script = Path(__file__).with_name("crashing.py")
    status, output = forks.run([str(script), mode, str(root), *map(str, more)], root.parent)
    assert status == 0, output
    return json.loads(output.splitlines()[-1])


@pytest.mark.parametrize("kills", [16, pytest.param(300, marks=pytest.mark.slow)])
def test_kill_at_random_moments(forks: Forks, tmp_path: Path, kills: int) -> None:
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
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_power_cut_anywhere(tmp_path: Path, name: str, every: bool) -> None:
    """And a kill anywhere, which loses nothing; and another one while what is left is repaired."""
    counts = crash_everywhere(record(ACTIONS[name], tmp_path / "run"), tmp_path / "trial", every)
    # Before, after, and some between.
    assert counts["states"] >= 4 and counts["repairs"] >= 4, counts


# Of each code and action, some are enough to see that none leads elsewhere than the others.
OFTEN = (("a save of the best", "I/O error", True), ("replacing a checkpoint", "disk full", False))


@pytest.mark.parametrize(
    ("name", "code", "goes_on"),
    [
        case if case in OFTEN else pytest.param(*case, marks=pytest.mark.slow)
        for case in itertools.product(ACTIONS, CODES, (False, True))
    ],
)
def test_any_operation_fails(tmp_path: Path, name: str, code: str, goes_on: bool) -> None:
    recorded = record(ACTIONS[name], tmp_path / "run")
    failed = fail_everywhere(recorded, tmp_path / "trial", CODES[code], goes_on)
    assert failed >= len(recorded.orders[0])


def test_short_writes(tmp_path: Path) -> None:
    """A disk that takes half of each piece gets the other half as well."""
    action = ACTIONS["a save of the best"]
    recorded = record(action, tmp_path / "run")
    lay_out(recorded.before, tmp_path / "trial")
    log = Log(tmp_path / "log")

    def half(operation: Operation) -> int:
        return (len(operation.data) + 1) // 2

    with watched(tmp_path / "trial", log, half):
        action.act(shared(tmp_path / "trial", ALONE, action.keep), alone)
    assert tree_of(tmp_path / "trial") == recorded.after
    assert len(log.read()) > len(recorded.orders[0]) + 20


def test_a_clock_that_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stays and what is newest follows from steps alone."""
    action = ACTIONS["a save that removes three"]
    begin(tmp_path, ALONE, alone, action)
    clock = itertools.count(10**9, -1000)
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    for step in (3, 2, 1):
        os.utime(tmp_path / ROOT / f"step-0000000{step}", (0, 10**9 - step))
    action.act(shared(tmp_path, ALONE, action.keep), alone)
    look(tmp_path, action.after)
    recover(tmp_path, action.keep, action.after)
