"""Processes that die, and disks that fill up, in the middle of a save."""

import json
from pathlib import Path

import pytest

from ..support.forks import forked
from .crashed import (
    ACTIONS,
    CODES,
    clocks_that_go_back,
    crash_everywhere,
    fail_everywhere,
    record,
    short_writes,
)
from .reliability import FAULTS, PAGE, Fault, counts_in, with_table


# The slow tests of the table of faults have the other two.
@pytest.mark.parametrize(
    "name", sorted(ACTIONS.keys() - {"replacing it by weights", "a save that removes three"})
)
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


def counts(folder: Path, *words: object) -> dict[str, int]:
    kind, *more = map(str, words)
    printed = forked("tests.checkpoint.crashed_ranks", kind, str(folder), *more)
    return json.loads(printed.splitlines()[-1])


def test_a_power_cut_anywhere_of_ranks_crash(tmp_path: Path) -> None:
    """Of all ranks at once, whichever of them has come further than the others."""
    found = counts(tmp_path, "power", 2, 8)
    assert found["orders"] >= 3 * found["actions"] and found["states"] >= 12, found


def test_a_disk_that_is_full_for_one_rank(tmp_path: Path) -> None:
    found = counts(tmp_path, "fails", 2, 8)
    assert found["main"] >= 5 and found["others"] >= 5, found


def test_a_rank_that_is_killed(tmp_path: Path) -> None:
    found = counts(tmp_path, "dies", 2, 25)
    assert found["0"] and found["1"], found


def test_a_file_that_is_damaged(tmp_path: Path) -> None:
    """All ranks pass over the checkpoint, or none, and all name the file."""
    assert counts(tmp_path, "damage", 2, 1)["files"] == 9 * 5


def test_the_page_has_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page, counts_in(page)) == page, "run python -m tests.checkpoint.reliability"
    assert len(counts_in(page)) == len(FAULTS) and all(counts_in(page).values())


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize(
    ("fault", "piece"),
    [
        pytest.param(fault, piece, id=f"{fault.name}, {fault.ranks}, {piece + 1}")
        for fault in FAULTS
        for piece in range(len(fault.pieces))
    ],
)
def test_a_fault(fault: Fault, piece: int, tmp_path: Path) -> None:
    stated = counts_in(PAGE.read_text(encoding="utf-8"))[fault.name, fault.ranks]
    assert fault.pieces[piece](tmp_path) * len(fault.pieces) >= stated
