"""The inverse root."""

from __future__ import annotations

import math

import pytest

from setpoint.optim.schedule.curves import inverse_sqrt_factor


def factor(step: float, warmup: int = 100, timescale: int = 100, floor: float = 0.0) -> float:
    return inverse_sqrt_factor(
        step, warmup=warmup, warmup_from=0.0, timescale=timescale, floor=floor
    )


def test_by_hand() -> None:
    assert [factor(step) for step in (0, 49, 99, 100, 400)] == [0.01, 0.5, 1, 1, 0.5]
    assert factor(0, warmup=0, timescale=9) == 1 and factor(7, warmup=0, timescale=9) == 0.75
    assert factor(10**6, floor=0.25) == 0.25


def test_it_is_that_of_vaswani_with_the_timescale_of_the_warmup() -> None:
    """min(n ** -0.5, n * W ** -1.5) for the n-th update, over its peak W ** -0.5."""
    for n in range(1, 400):
        theirs = min(n**-0.5, n * 100**-1.5) / 100**-0.5
        # After the warm-up ours counts from 0 as all schedules do, one update behind.
        ours = factor(n - 1) if n <= 100 else factor(n)
        assert ours == pytest.approx(theirs, rel=1e-12)


def test_the_timescale() -> None:
    assert factor(50 + 30, warmup=50, timescale=30) == pytest.approx(math.sqrt(0.5))
