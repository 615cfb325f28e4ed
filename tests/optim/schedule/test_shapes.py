"""The shapes of decays: where they begin and end, and what they are in between."""

from __future__ import annotations

from decimal import Decimal, getcontext
from functools import partial
from itertools import pairwise

import numpy
import pytest

from setpoint.optim.schedule import curves as shapes
from setpoint.optim.schedule.curves import Shape

getcontext().prec = 40
ALL: dict[str, Shape] = {
    "linear": shapes.linear,
    "cosine": shapes.cosine,
    "sqrt": shapes.sqrt,
    "one_minus_sqrt": shapes.one_minus_sqrt,
    "rex": shapes.rex,
    "polynomial": partial(shapes.polynomial, power=3.0),
}


@pytest.mark.parametrize("name", ALL)
def test_from_one_to_zero(name: str) -> None:
    shape = ALL[name]
    values = [shape(t / 200) for t in range(201)]
    assert values[0] == 1 and values[-1] == 0
    assert all(a > b for a, b in pairwise(values))


@pytest.mark.parametrize("t", [0.0, 0.1, 0.25, 0.5, 0.625, 0.99, 1.0])
def test_against_decimals(t: float) -> None:
    left = 1 - Decimal(t)
    expected = {
        "linear": left,
        "sqrt": left.sqrt(),
        "one_minus_sqrt": 1 - Decimal(t).sqrt(),
        "rex": left / (left / 2 + Decimal("0.5")),
        "polynomial": left * left * left,
    }
    for name, value in expected.items():
        assert ALL[name](t) == pytest.approx(float(value), rel=1e-14, abs=1e-16), name
    # Half a cosine is a squared one of half the angle.
    assert shapes.cosine(t) == pytest.approx(numpy.cos(numpy.pi * t / 2) ** 2, rel=1e-14, abs=1e-16)


def test_which_of_the_roots_is_which() -> None:
    assert shapes.sqrt(0.75) == 0.5 and shapes.one_minus_sqrt(0.25) == 0.5
    # One falls late and the other early.
    assert shapes.sqrt(0.5) > shapes.linear(0.5) > shapes.one_minus_sqrt(0.5)


def test_rex_stays_above_the_line() -> None:
    assert shapes.rex(0.5) == pytest.approx(2 / 3)
    assert all(shapes.rex(t / 10) > shapes.linear(t / 10) for t in range(1, 10))
