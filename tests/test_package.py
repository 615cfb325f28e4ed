"""The names that `import setpoint as sp` offers."""

import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from types import ModuleType

import pytest

import setpoint
import setpoint.config
import setpoint.model
import setpoint.train

from .conftest import ROOT, SOURCE
from .support.snapshots import refused


@pytest.mark.parametrize("package", [setpoint, setpoint.config, setpoint.model, setpoint.train])
def test_names_of_packages_are_there(package: ModuleType) -> None:
    assert package.__all__ and set(package.__all__) <= set(dir(package))
    assert all(getattr(package, name) is not None for name in package.__all__)


def test_the_import_itself_brings_the_lists_of_names_only() -> None:
    code = (
        "import setpoint, sys; print(sorted(m for m in sys.modules if m.startswith('setpoint.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['setpoint.config', 'setpoint.config.lazy', 'setpoint.version']"


def test_a_name_that_is_not_there() -> None:
    with refused(AttributeError):
        _ = setpoint.confg  # pyright: ignore[reportAttributeAccessIssue]


def test_presets_that_wait_are_those_that_their_modules_bring() -> None:
    """What `setpoint.presets` says of modules that it does not import, in a process of its own."""
    code = """
import sys
import setpoint.presets
from setpoint.config.layers.presets import presets
waiting = {name: one for name, one in presets._values.items() if isinstance(one, str)}
assert waiting and not waiting.values() & sys.modules.keys()
for name, module in waiting.items():
    assert presets[name].__module__ == module, name
assert waiting.keys() | {"tiny"} == presets.keys(), "a preset of these modules is not named there"
from pkgutil import iter_modules
modules = {f"setpoint.presets.{each.name}" for each in iter_modules(setpoint.presets.__path__)}
others = {"tiny", "modifiers", "recipes"}
assert modules == {*waiting.values(), *(f"setpoint.presets.{name}" for name in others)}
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_files_that_are_read_at_run_time_are_installed() -> None:
    """Beside modules: stubs, tables and pages, which a wheel leaves out unless they are named."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns: dict[str, list[str]] = declared["package-data"]
    for path in (SOURCE / "setpoint").rglob("*.*"):
        if path.suffix in (".py", ".pyc") or not path.is_file():
            continue
        package = ".".join(path.parent.relative_to(SOURCE).parts)
        named = [*patterns["*"], *patterns.get(package, [])]
        assert any(fnmatch(path.name, pattern) for pattern in named), path


def test_the_lock_file_has_the_pinned_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = {
        re.sub(r"\[.*\]", "", name).replace("_", "-").lower(): version
        for name, version in re.findall(
            r"([\w.\[\]-]+)==([\w.]+)", " ".join(project["optional-dependencies"]["dev"])
        )
    }
    locked = {
        name.replace("_", "-").lower(): version
        for name, version in re.findall(
            r"^([\w.-]+)==([\w.]+)$", (ROOT / "requirements-dev.lock").read_text(), re.MULTILINE
        )
    }
    assert len(pinned) > 25
    assert {name: locked.get(name) for name in pinned} == pinned
    assert f"TORCH := {locked['torch']}\n" in (ROOT / "Makefile").read_text()
