"""Charts in the terminal."""

from __future__ import annotations

import sys

import pytest

from setpoint.config import SetpointError
from setpoint.report.plot import Plot, Series, chart

CURVES = [Series("lr=1e-3", [(1, 3.0), (2, 2.0)]), Series("lr=3e-4", [(1, 3.0), (2, 2.5)])]


def test_curves_are_told_apart_with_and_without_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = chart(Plot("loss over the steps", "step", "loss", CURVES), colour=False)
    assert plain.startswith("loss over the steps\n") and "\033" not in plain
    assert "A" in plain and "B" in plain and "lr=3e-4" in plain
    monkeypatch.setenv("FORCE_COLOR", "1")  # plotille looks for a terminal itself
    assert "\033" in chart(Plot("loss", "step", "loss", CURVES), colour=True)


def test_points_and_curves_of_one_point() -> None:
    over = Plot("t", "lr", "loss", [Series("runs", [(1e-4, 2.0), (1e-2, 3.0)])], lines=False)
    assert "o" in chart(over, colour=False).partition("Legend")[0]
    chart(Plot("t", "step", "loss", [Series("a", [(1, 1.0)]), Series("b", [])]), colour=False)


def test_linear_axes_begin_at_0() -> None:
    text = chart(Plot("t", "x", "y", [Series("a", [(9, 1e-3), (20, 1.0)])], linear=True))
    rows = [line.split("|")[0].strip() for line in text.splitlines() if "| " in line]
    assert "0" in rows and not any(row.startswith("-") and row.strip("-") for row in rows)
    flat = [Series("a", [(0, 0.0), (9, 0.0)]), Series("b", [])]
    chart(Plot("t", "x", "y", flat, linear=True))


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotille", None)
    with pytest.raises(SetpointError, match=r"pip install 'setpoint\[plot\]'"):
        chart(Plot("t", "x", "y", CURVES))
