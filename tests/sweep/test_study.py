"""The trials of a search: counted without writing, and told apart from those of other searches."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from setpoint.config import SetpointError
from setpoint.sweep.optuna_search import STORAGE, import_optuna, study_name, trials_before
from setpoint.sweep.sweep_file import Search

from .sample import maker
from .test_search import AXES, search


def test_trials_are_counted_without_a_trace(tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    make, folder = maker(tmp_path), tmp_path / "sweep"
    assert trials_before(Search(trials=9), AXES, make, folder) == 0
    assert not (folder / STORAGE).exists()
    search(tmp_path, 2)
    before = (folder / STORAGE).read_bytes()
    assert trials_before(Search(trials=9), AXES, make, folder) == 2
    assert trials_before(Search(trials=9, objective="train.loss"), AXES, make, folder) == 0
    assert (folder / STORAGE).read_bytes() == before
    (folder / STORAGE).write_text("no database " * 100)
    with pytest.raises(SetpointError, match="the trials cannot be read"):
        trials_before(Search(trials=9), AXES, make, folder)


def test_searches_that_cannot_be_compared_are_told_apart(tmp_path: Path) -> None:
    make = maker(tmp_path)
    spec = Search(trials=3)
    name = study_name(spec, AXES, make)
    assert study_name(Search(trials=5, seed=3), AXES, make) == name
    assert study_name(Search(trials=3, direction="maximize"), AXES, make) != name
    fewer = {path: axis for path, axis in AXES.items() if path[0] != "batch"}
    assert study_name(spec, fewer, make) != name


def test_without_optuna_the_answer_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SetpointError, match=r"pip install 'setpoint\[search\]'"):
        import_optuna()
