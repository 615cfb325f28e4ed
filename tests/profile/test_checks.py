"""Checks of `[profiling]` against ranks and devices."""

from __future__ import annotations

import pytest

from setpoint.config import resolve
from setpoint.parallel.config import Parallel
from setpoint.profile.config import Profiling, rank_problems, snapshot_problem


@pytest.mark.parametrize(
    ("ranks", "paths"),
    [((0,), []), (None, []), ((0, 1, 2), ["profiling.ranks.2"])],
)
def test_ranks(ranks: tuple[int, ...] | None, paths: list[str]) -> None:
    found = rank_problems(resolve(Profiling(ranks=ranks)), resolve(Parallel(world_size=2)))
    assert [problem.path for problem in found] == paths


def test_a_snapshot_says_why_there_is_no_gpu() -> None:
    problem = snapshot_problem("the device is cpu")
    assert "memory, and the device is cpu; profiling.memory" in problem.message
