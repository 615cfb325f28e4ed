"""Several ranks write one checkpoint: it is there whole or not at all, whatever happens to one.

The slow tests of the table of faults (test_reliability.py) try more of each, on four ranks as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path


def counts(run_module: Callable[..., str], folder: Path, *words: object) -> dict[str, int]:
    kind, *more = map(str, words)
    printed = run_module("tests.checkpoint.crashed_ranks", kind, str(folder), *more)
    return json.loads(printed.splitlines()[-1])


def test_a_power_cut_anywhere(tmp_path: Path, run_module: Callable[..., str]) -> None:
    """Of all ranks at once, whichever of them has come further than the others."""
    found = counts(run_module, tmp_path, "power", 2, 8)
    assert found["orders"] >= 3 * found["actions"] and found["states"] >= 20, found


def test_a_disk_that_is_full_for_one_rank(tmp_path: Path, run_module: Callable[..., str]) -> None:
    found = counts(run_module, tmp_path, "fails", 2, 8)
    assert found["main"] >= 5 and found["others"] >= 5, found


def test_a_rank_that_is_killed(tmp_path: Path, run_module: Callable[..., str]) -> None:
    found = counts(run_module, tmp_path, "dies", 2, 25)
    assert found["0"] and found["1"], found


def test_a_file_that_is_damaged(tmp_path: Path, run_module: Callable[..., str]) -> None:
    """All ranks pass over the checkpoint, or none, and all name the file."""
    assert counts(run_module, tmp_path, "damage", 2, 1)["files"] == 9 * 5
