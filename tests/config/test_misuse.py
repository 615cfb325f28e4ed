"""Wrong arguments of the functions of the kernel."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import setpoint as sp
from setpoint.config import SetpointError
from setpoint.config.layers.presets import presets
from setpoint.config.values.user_code import (
    call_user_function,
    find_user_function,
    import_user_module,
)

from ..support.snapshots import refused
from .sample import Batch

given: Any = sp


WRONG: dict[str, Callable[[], object]] = {
    "compose a mapping": lambda: given.compose({}),
    "compose from a mapping": lambda: given.compose(Batch, {"size": 1}),
    "compose with one flag": lambda: given.compose(Batch, flags="--size 1"),
    "compose from no file": lambda: given.compose(Batch, "nothere.txt"),
    "load a file": lambda: given.load("s.toml"),
    "resolve a mapping": lambda: given.resolve({"size": 1}),
    "resolve a class": lambda: given.resolve(Batch),
    "fingerprint of a mapping": lambda: given.fingerprint({}),
    "fingerprint of a name": lambda: given.fingerprint("a"),
    "differences of names": lambda: given.differences("a", "b"),
    "differences of drafts": lambda: given.differences(Batch(), Batch()),
    "record of a name": lambda: given.record_files("a"),
    "schema of a mapping": lambda: given.json_schema({}),
    "verify an unknown need": lambda: given.verify(sp.resolve(Batch()), {"file"}),
    "verify a draft": lambda: given.verify(Batch()),
    "cautions of a draft": lambda: given.cautions_of(Batch()),
    "is_set of no field": lambda: given.is_set(Batch(), "sise"),
    "ref": lambda: given.ref("jay*"),
    "Period": lambda: given.Period("3 stps"),
    "DType": lambda: given.DType("bf61"),
    "ByteSize": lambda: given.ByteSize("3 XB"),
}


@pytest.mark.parametrize("call", WRONG)
def test_wrong_arguments_are_refused(call: str) -> None:
    with refused():
        WRONG[call]()


def test_two_presets_of_one_name_in_one_module() -> None:
    text = "import setpoint as sp\nfrom tests.config.sample import Batch\n"
    one = '@sp.preset\ndef twice() -> Batch:\n    """It."""\n    return Batch()\n'
    names = {"__name__": "somewhere"}
    try:
        for _ in range(2):  # a module that is loaded again
            exec(compile(text + one, "somewhere.py", "exec"), names)
        with refused(TypeError):
            exec(compile(text + one + one, "somewhere.py", "exec"), names)
    finally:
        presets.pop("twice", None)


def test_a_role_of_another_kind() -> None:
    role: Any = "identity"
    with refused():
        sp.field(default=1, role=role)


def test_what_objects_show_of_themselves() -> None:
    draft = Batch()
    assert repr(sp.compose(Batch)) == "Composition('Batch', Batch())"
    draft.size = 3
    (found,) = [
        each
        for each in sp.differences(sp.resolve(Batch()), sp.resolve(draft))
        if each.path == "size"
    ]
    assert repr(found).startswith("Difference('size', ") and " -> 3 (program (" in str(found)
    nothing = sp.verify(sp.resolve(draft))
    assert repr(nothing) == "Verification([], [], [])" and str(nothing) == "nothing was found"
    assert repr(sp.Caution("code", "x", "y")) == "Caution('code', 'x', 'y')"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def test_a_module_of_the_working_folder_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "found_here.py").write_text("value = 3")
    assert import_user_module("found_here", "x").value == 3
    monkeypatch.delitem(sys.modules, "found_here")


@pytest.mark.parametrize(
    "text",
    [
        "1 / 0",
        "import absent_module",
        "def",
    ],
)
def test_what_goes_wrong_while_importing_is_told(folder: Path, text: str) -> None:
    (folder / "broken.py").write_text(text)
    with refused():
        import_user_module("broken", "it")


def test_errors_of_a_function_are_told_with_their_line(folder: Path) -> None:
    def fails() -> None:
        raise KeyError("absent")

    with refused():
        call_user_function(fails, "the preset")


def test_errors_in_words_pass_unchanged() -> None:
    error = SetpointError("as it is")

    def fails() -> None:
        raise error

    with pytest.raises(SetpointError) as caught:
        call_user_function(fails, "the preset")
    assert caught.value is error


def test_paths_that_name_no_function_are_refused(folder: Path) -> None:
    (folder / "plain.py").write_text("x = 3\n\ndef make():\n    return x\n")
    for path in ("plain:x", ".x:make", "plain:mak"):
        with refused():
            find_user_function(path)
    with refused():
        import_user_module("plain.py", "--import plain.py")
