"""Plots in files and in the terminal."""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from setpoint.report.plot import Plot, Series, chart, save

from ..support.snapshots import refused

CURVES = [Series("lr=1e-3", [(1, 3.0), (2, 2.0)]), Series("lr=3e-4", [(1, 3.0), (2, 2.5)])]
PLOT = Plot("loss over the steps", "step", "loss", CURVES)


def test_a_png_and_an_svg(tmp_path: Path) -> None:
    save(PLOT, str(tmp_path / "plot.PNG"))
    assert (tmp_path / "plot.PNG").read_bytes().startswith(b"\x89PNG")
    save(PLOT, str(tmp_path / "plot.svg"))
    assert ElementTree.parse(tmp_path / "plot.svg").getroot().tag.endswith("svg")
    assert len(list(tmp_path.iterdir())) == 2


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    for name in ("plot.pdf", "none/plot.png", "folder.png"):
        with refused():
            save(PLOT, str(tmp_path / name))


@pytest.mark.parametrize(
    ("packages", "draw"),
    [
        (["matplotlib.figure", "matplotlib.backends.backend_agg"], lambda: save(PLOT, "plot.png")),
        (["plotille"], lambda: chart(PLOT)),
    ],
    ids=["file", "terminal"],
)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, packages: list[str], draw: Callable[[], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in packages:
        monkeypatch.setitem(sys.modules, name, None)
    with refused():
        draw()


def test_points_that_are_not_finite_are_left_out() -> None:
    points = [(1, 2.0), (2, math.nan), (math.inf, 1.0), (3, 1.0)]
    assert Series("run", points).drawable() == [(1, 2.0), (3, 1.0)]


def test_axes_of_wide_ranges_are_logarithmic() -> None:
    rates = Series("runs", [(1e-4, 2.0), (1e-2, 3.0)])
    over = Plot("t", "lr", "loss", [rates], lines=False)
    assert over.is_logarithmic(0) and not over.is_logarithmic(1)
    assert not Plot("t", "step", "loss", [rates]).is_logarithmic(0)
    assert not Plot("t", "x", "y", [Series("r", [(0, 1.0), (100, 2.0)])], False).is_logarithmic(0)
    assert not Plot("t", "x", "y", [Series("r", [])], False).is_logarithmic(1)
    wide = [Series("rate", [(0, 1e-5), (100, 1.0)])]
    assert Plot("t", "update", "rate", wide).is_logarithmic(1)
    assert not Plot("t", "update", "rate", wide, linear=True).is_logarithmic(1)


def test_charts_tell_curves_apart_with_and_without_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = chart(PLOT, colour=False)
    assert plain.startswith("loss over the steps\n") and "\033" not in plain
    assert "A" in plain and "B" in plain and "lr=3e-4" in plain
    monkeypatch.setenv("FORCE_COLOR", "1")  # plotille looks for a terminal itself
    assert "\033" in chart(PLOT, colour=True)


def test_charts_of_points_and_of_curves_of_one_point() -> None:
    over = Plot("t", "lr", "loss", [Series("runs", [(1e-4, 2.0), (1e-2, 3.0)])], lines=False)
    assert "o" in chart(over, colour=False).partition("Legend")[0]
    chart(Plot("t", "step", "loss", [Series("a", [(1, 1.0)]), Series("b", [])]), colour=False)


def test_linear_axes_of_charts_begin_at_0() -> None:
    text = chart(Plot("t", "x", "y", [Series("a", [(9, 1e-3), (20, 1.0)])], linear=True))
    rows = [line.split("|")[0].strip() for line in text.splitlines() if "| " in line]
    assert "0" in rows and not any(row.startswith("-") and row.strip("-") for row in rows)
    chart(Plot("t", "x", "y", [Series("a", [(0, 0.0), (9, 0.0)]), Series("b", [])], linear=True))
    chart(Plot("t", "x", "y", [Series("a", [(0, 0.0), (9, 5e-324)])], linear=True))
