"""Checkpoints of several ranks: each writes its parts, and any division reads them."""

from __future__ import annotations

import subprocess
import sys

from ..conftest import ROOT


def test_parts_are_written_once_and_read_by_any_division() -> None:
    command = [sys.executable, "-m", "tests.parallel.divided_checkpoints"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split() == [
        "equal_in_any_other_division",
        "a_full_disk_on_one_rank_saves_nothing",
        "a_flipped_bit_is_seen_by_all",
    ]
