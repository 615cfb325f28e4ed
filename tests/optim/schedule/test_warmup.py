"""The linear warm-up, by exact fractions."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.optim.schedule.curves import warmup_factor


def test_by_hand() -> None:
    assert [warmup_factor(step, warmup=4) for step in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
    assert [warmup_factor(s, warmup=2, warmup_from=0.5) for s in range(3)] == [0.75, 1, 1]
    assert warmup_factor(0, warmup=0) == warmup_factor(0, warmup=1) == 1.0


@given(st.integers(0, 60), st.integers(0, 60), st.fractions(0, 1))
def test_against_fractions(steps: int, step: int, start: Fraction) -> None:
    share = min(Fraction(1), Fraction(step + 1, max(steps, 1)))
    expected = start + (1 - start) * share
    found = warmup_factor(step, warmup=steps, warmup_from=float(start))
    assert found == pytest.approx(float(expected), rel=1e-15)
    # From 0 it is the quotient itself, to the last bit.
    assert warmup_factor(step, warmup=steps) == (step + 1) / steps if step < steps else 1


@given(st.floats(0, 60), st.integers(1, 50))
def test_between_two_updates_it_lies_between_them(at: float, steps: int) -> None:
    low, found, high = (warmup_factor(s, warmup=steps) for s in (int(at), at, int(at) + 1))
    assert low <= found <= high <= 1
