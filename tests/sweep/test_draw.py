"""Draws: inside their limits, spread as they should be, and free of the machine."""

from __future__ import annotations

import statistics
from fractions import Fraction
from math import log10

from hypothesis import given
from hypothesis import strategies as st

from setpoint.sweep.space import draw, linear, logarithmic

SHARES = st.fractions(0, 1)


@given(st.integers(0, 2**63), st.integers(0, 10**6), st.text(max_size=20))
def test_a_draw_is_a_share(seed: int, index: int, name: str) -> None:
    assert 0 <= draw(seed, index, name) < 1


def test_draws_do_not_depend_on_one_another() -> None:
    assert draw(0, 1, "lr") != draw(1, 0, "lr") != draw(0, 1, "rl")
    shares = [float(draw(0, index, "lr")) for index in range(1000)]
    assert abs(statistics.mean(shares) - 0.5) < 0.03


@given(SHARES, st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_linear_stays_inside(share: Fraction, low: float, width: float) -> None:
    high = low + width
    assert low <= linear(share, low, high) <= high


@given(SHARES, st.floats(1e-300, 1e300), st.floats(1.001, 1e9))
def test_logarithmic_stays_inside(share: Fraction, low: float, factor: float) -> None:
    high = min(low * factor, 1e305)
    assert low <= logarithmic(share, low, high) <= high


def test_the_ends_and_the_middle() -> None:
    assert [linear(Fraction(n, 2), 1.0, 3.0) for n in range(3)] == [1.0, 2.0, 3.0]
    assert [logarithmic(Fraction(n, 2), 1e-4, 1e-2) for n in range(3)] == [1e-4, 1e-3, 1e-2]


def test_orders_of_magnitude_are_equally_likely() -> None:
    drawn = [logarithmic(draw(0, index, "x"), 1e-4, 1.0) for index in range(800)]
    for power in range(-4, 0):
        share = sum(power <= log10(value) < power + 1 for value in drawn) / len(drawn)
        assert 0.2 < share < 0.3
