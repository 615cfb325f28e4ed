"""Which modules a configuration may import, and what is said of the others."""

import sys
from pathlib import Path

import pytest

from setpoint.config import ImportPath
from setpoint.config.values.user_code import VARIABLE, allow_imports, allowed_modules

from ...support.snapshots import refused
from . import targets


@pytest.mark.parametrize(
    "text",
    [
        "os.system",
        "torch.load",
        "torch.optim.optimizer.torch.load",
        "torch.optim.optimizer.torch.from_file",
        "torch.optim.lr_scheduler.partial",
        "torch.optim:lr_scheduler.math.sqrt",
        "torch.optimizers.Adam",
        "setpoint.config.values.user_code.import_user_module",
    ],
)
def test_only_what_is_allowed_is_imported(text: str) -> None:
    with refused():
        ImportPath(text, ("torch.optim",)).load()


def test_a_refused_module_is_not_even_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "never_imported.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = ImportPath("never_imported.thing")
    with refused():
        path.load()
    assert path.loaded() is None
    assert "never_imported" not in sys.modules


@pytest.mark.parametrize(
    "text",
    [
        "torch.optim.Adagard", "torch.optim.adagrad", "torch.optim.Adam.name.x",
        "tests.config.component_sections.targets.NUMBER", "not_installed_anywhere.thing",
    ],
)  # fmt: skip
def test_missing_modules_and_names_are_explained(text: str) -> None:
    trusted = ("torch.optim", "tests", "not_installed_anywhere")
    with refused():
        ImportPath(text, trusted).load()


def test_objects_of_the_program_need_no_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    import pickle

    monkeypatch.setattr("setpoint.config.values.user_code._named", set())
    monkeypatch.setenv("SETPOINT_IMPORTS", "")
    path = ImportPath(targets.Part)
    assert path.load() is targets.Part
    assert path.trusting(()).load() is targets.Part
    assert pickle.loads(pickle.dumps(path)).load() is targets.Part
    # A record of the program's run names it by its path.
    assert ImportPath(path.text).load() is targets.Part
    with refused():
        ImportPath("colorsys.hsv_to_rgb").load()
    with refused():
        ImportPath("torch.optim.Adagrad", ("torch.optim",)).load()


def test_the_environment_replaces_what_classes_trust(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("setpoint.config.values.user_code._named", set())
    monkeypatch.delenv(VARIABLE, raising=False)
    assert allowed_modules(("torch.optim",)) == ("torch.optim",)
    monkeypatch.setenv(VARIABLE, "mine, torch.nn")
    assert allowed_modules(("torch.optim",)) == ("mine", "torch.nn")
    monkeypatch.setenv(VARIABLE, "")
    assert allowed_modules(("torch.optim",)) == ()
    allow_imports("given")
    assert allowed_modules(("torch.optim",)) == ("given",)
