"""Exact resume of several ranks: a run of which one is killed anywhere equals one of which none is.

What is equal: weights and optimizer byte for byte, the rest of the state, the best checkpoint, and
every row of metrics but the measured times. The long form is that of the table of faults, see
tests/checkpoint/reliability.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("ranks", "story", "kills"),
    [(2, "shard", 3), pytest.param(4, "shard, replicate", 4, marks=pytest.mark.slow)],
)
def test_killed_anywhere_it_equals_the_undisturbed_run(
    tmp_path: Path,
    run_module: Callable[..., str],
    ranks: int,
    story: str,
    kills: int,
) -> None:
    words = map(str, (tmp_path, ranks, kills, story))
    printed = run_module("tests.parallel.killed_ranks", *words).splitlines()[-1]
    found: dict[str, int] = json.loads(printed)
    assert sum(found.values()) >= kills
