"""Several ranks write one checkpoint: it is there whole or not at all, whatever happens to one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

LONG = pytest.mark.slow


def counts(run_module: Callable[..., str], folder: Path, *words: object) -> dict[str, int]:
    kind, *more = map(str, words)
    printed = run_module("tests.checkpoint.crashed_ranks", kind, str(folder), *more)
    return json.loads(printed.splitlines()[-1])


@pytest.mark.parametrize(
    ("ranks", "stride"), [(2, 2), pytest.param(2, 1, marks=LONG), pytest.param(4, 2, marks=LONG)]
)
def test_a_power_cut_anywhere(
    tmp_path: Path, run_module: Callable[..., str], ranks: int, stride: int
) -> None:
    """Of all ranks at once, whichever of them has come further than the others."""
    found = counts(run_module, tmp_path, "power", ranks, stride)
    # Where all ranks write, they do so in several orders; where only the main one acts, in one.
    assert found["orders"] >= 2 * found["actions"] and found["states"] >= 100, found


@pytest.mark.parametrize(
    ("ranks", "stride"), [(2, 8), pytest.param(2, 1, marks=LONG), pytest.param(4, 3, marks=LONG)]
)
def test_a_disk_that_is_full_for_one_rank(
    tmp_path: Path, run_module: Callable[..., str], ranks: int, stride: int
) -> None:
    found = counts(run_module, tmp_path, "fails", ranks, stride)
    assert found["main"] >= 40 // stride and found["others"] >= 5 * (ranks - 1), found


@pytest.mark.parametrize(
    ("ranks", "stride"), [(2, 25), pytest.param(2, 1, marks=LONG), pytest.param(4, 5, marks=LONG)]
)
def test_a_rank_that_is_killed(
    tmp_path: Path, run_module: Callable[..., str], ranks: int, stride: int
) -> None:
    found = counts(run_module, tmp_path, "dies", ranks, stride)
    assert all(found[str(rank)] >= 20 // stride + 1 for rank in range(ranks)), found


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=LONG)])
def test_a_file_that_is_damaged(tmp_path: Path, run_module: Callable[..., str], ranks: int) -> None:
    """All ranks pass over the checkpoint, or none, and all name the file."""
    assert counts(run_module, tmp_path, "damage", ranks, 1)["files"] == 3 + 2 * (ranks + 1)
