"""Plots in files."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from setpoint.config import SetpointError
from setpoint.report.plot import Plot, Series, save

from .test_terminal import CURVES

PLOT = Plot("loss over the steps", "step", "loss", CURVES)


def test_a_png_and_an_svg(tmp_path: Path) -> None:
    save(PLOT, str(tmp_path / "plot.PNG"))
    assert (tmp_path / "plot.PNG").read_bytes().startswith(b"\x89PNG")
    save(PLOT, str(tmp_path / "plot.svg"))
    assert ElementTree.parse(tmp_path / "plot.svg").getroot().tag.endswith("svg")
    assert len(list(tmp_path.iterdir())) == 2


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SetpointError, match=r"ends in .png or .svg"):
        save(PLOT, str(tmp_path / "plot.pdf"))
    with pytest.raises(SetpointError, match="there is no folder"):
        save(PLOT, str(tmp_path / "none/plot.png"))
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(SetpointError, match="cannot be written"):
        save(PLOT, str(tmp_path / "folder.png"))


def test_without_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(SetpointError, match=r"pip install 'setpoint\[plot\]'"):
        save(PLOT, str(tmp_path / "plot.png"))


# What plots are made of.


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
