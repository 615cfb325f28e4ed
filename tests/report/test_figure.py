"""Plots in files."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from setpoint.config import SetpointError
from setpoint.report.plot import Plot, save

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
