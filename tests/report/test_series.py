"""What plots are made of."""

from __future__ import annotations

import math

from setpoint.report.plot import Plot, Series


def test_points_without_a_place_are_left_out() -> None:
    points = [(1, 2.0), (2, math.nan), (math.inf, 1.0), (3, 1.0)]
    assert Series("run", points).drawable() == [(1, 2.0), (3, 1.0)]


def test_logarithmic_axes() -> None:
    rates = Series("runs", [(1e-4, 2.0), (1e-2, 3.0)])
    over = Plot("t", "lr", "loss", [rates], lines=False)
    assert over.is_logarithmic(0) and not over.is_logarithmic(1)
    assert not Plot("t", "step", "loss", [rates]).is_logarithmic(0)
    assert not Plot("t", "x", "y", [Series("r", [(0, 1.0), (100, 2.0)])], False).is_logarithmic(0)
    assert not Plot("t", "x", "y", [Series("r", [])], False).is_logarithmic(1)


def test_linear_axes_on_wish() -> None:
    wide = [Series("rate", [(0, 1e-5), (100, 1.0)])]
    assert Plot("t", "update", "rate", wide).is_logarithmic(1)
    assert not Plot("t", "update", "rate", wide, linear=True).is_logarithmic(1)
