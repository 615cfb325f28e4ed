"""Names are known before what they stand for is imported."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from setpoint.config import Config, SetpointError, preset
from setpoint.config.composition import compose
from setpoint.config.layers import presets as registry
from setpoint.config.layers.presets import Catalogue

MODULE = """
from setpoint.config import preset
from tests.config.sample import Job

@preset
def late_one() -> Job:
    return Job(seed=1)

@preset
def late_two() -> Job:
    return Job(seed=2)
"""


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalogue[object]:
    """A registry that expects two presets of a module that nobody has imported."""
    catalogue: Catalogue[object] = Catalogue()
    monkeypatch.setattr(registry, "presets", catalogue)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "late_module", raising=False)
    (tmp_path / "late_module.py").write_text(MODULE)
    catalogue.expect("late_module", "late-one", "late-two")
    return catalogue


def test_names_are_known_and_nothing_is_imported(known: Catalogue[object]) -> None:
    assert list(known) == ["late-one", "late-two"]
    assert len(known) == 2
    assert "late-one" in known
    assert "late-three" not in known
    assert registry.preset_named("late_one") == "late-one"
    with pytest.raises(SetpointError, match=r"no preset 'late-on'\. Did you mean late-one\?"):
        registry.call_preset("late-on")
    assert "late_module" not in sys.modules


def test_one_that_is_asked_for_brings_its_module(known: Catalogue[object]) -> None:
    from .sample import Job

    assert compose(Job, "late-two").resolve().seed == 2
    assert "late_module" in sys.modules
    assert sorted(known) == ["late-one", "late-two"]
    assert {function.__name__ for function in known.values()} == {"late_one", "late_two"}  # pyright: ignore[reportAttributeAccessIssue]
    # Known again, they are those that are there.
    known.expect("nowhere", "late-one")
    assert compose(Job, "late-one").resolve().seed == 1


def test_a_name_that_is_taken_is_refused(known: Catalogue[object]) -> None:
    def late_one() -> Config:
        return Config()

    late_one.__module__ = "mine"
    with pytest.raises(TypeError, match="there is already a preset 'late-one', in late_module"):
        preset(late_one)


def test_a_module_that_fails_is_tried_again(tmp_path: Path, known: Catalogue[object]) -> None:
    (tmp_path / "late_module.py").write_text("raise ImportError('not today')")
    for _ in range(2):
        with pytest.raises(ImportError, match="not today"):
            known["late-one"]
    assert "late-one" in known


def test_threads_wait_for_a_module_that_another_imports(
    tmp_path: Path, known: Catalogue[object]
) -> None:
    (tmp_path / "late_module.py").write_text(f"import time\ntime.sleep(0.05)\n{MODULE}")
    with ThreadPoolExecutor(4) as pool:
        names = list(pool.map(lambda name: known[name].__name__, ["late-one", "late-two"] * 2))  # pyright: ignore[reportAttributeAccessIssue]
    assert names == ["late_one", "late_two"] * 2
