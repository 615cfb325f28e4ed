"""The names that `import setpoint as sp` offers."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import setpoint


@pytest.mark.parametrize("name", setpoint.__all__)
def test_each_name_is_there(name: str) -> None:
    assert getattr(setpoint, name) is not None
    assert name in dir(setpoint)


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(setpoint.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {a.asname for node in block.body if isinstance(node, ast.ImportFrom) for a in node.names}
    assert seen == set(setpoint.__all__)


def test_the_import_itself_brings_nothing() -> None:
    code = "import setpoint, sys; print([m for m in sys.modules if m.startswith('setpoint.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'confg'"):
        _ = setpoint.confg  # pyright: ignore[reportAttributeAccessIssue]


def test_presets_that_wait_are_those_that_their_modules_bring() -> None:
    """What `setpoint.presets` says of modules that it does not import, in a process of its own."""
    code = """
import sys
import setpoint.presets
from setpoint.config.layers.presets import presets
waiting = {name: one.module for name, one in presets._values.items() if hasattr(one, "module")}
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
