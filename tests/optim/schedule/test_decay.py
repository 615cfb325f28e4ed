"""Warm-up, decay and floor put together."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.optim.schedule.curves import cosine, decay_factor, linear


def factor(step: float, warmup: int, horizon: int, floor: float, **more: bool) -> float:
    return decay_factor(
        step, shape=cosine, warmup=warmup, warmup_from=0.0, begin=warmup, length=horizon - warmup,
        end=horizon, floor=floor, **more,
    )  # fmt: skip


@given(st.integers(0, 300), st.integers(0, 100), st.integers(1, 200), st.floats(0, 1))
def test_cosine_has_not_changed_by_a_bit(step: int, warmup: int, rest: int, floor: float) -> None:
    """What runs of earlier versions were trained with, term for term."""
    horizon = warmup + rest
    if step < warmup:
        expected = (step + 1) / warmup
    elif step >= horizon:
        expected = floor
    else:
        progress = (step - warmup) / (horizon - warmup)
        expected = floor + (1.0 - floor) * (1.0 + math.cos(math.pi * progress)) / 2.0
    assert factor(step, warmup, horizon, floor) == expected


def test_parts_by_hand() -> None:
    def at(step: float, hard_floor: bool = False) -> float:
        return decay_factor(
            step, shape=linear, warmup=2, warmup_from=0.5, begin=2, length=8, end=10, floor=0.25,
            hard_floor=hard_floor,
        )  # fmt: skip

    assert [at(step) for step in (0, 1, 2, 6, 10, 99)] == [0.75, 1, 1, 0.625, 0.25, 0.25]
    assert [at(step, True) for step in (2, 4, 8, 9, 10)] == [1, 0.75, 0.25, 0.25, 0.25]
    assert at(6.4) == pytest.approx(0.25 + 0.75 * 0.45)


def test_a_warmup_as_long_as_the_horizon() -> None:
    assert [factor(step, 3, 3, 0.1) for step in (1, 2, 3)] == pytest.approx([2 / 3, 1.0, 0.1])
