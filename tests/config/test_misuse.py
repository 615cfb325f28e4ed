"""What a function is handed by mistake is told in words."""

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

from .sample import Batch

given: Any = sp


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: given.compose({}), "compose takes the class of a configuration, got {}"),
        (lambda: given.compose(Batch, {"size": 1}), "a SOURCE that is not text takes a config"),
        (lambda: given.compose(Batch, flags="--size 1"), "flags accepts a list"),
        (lambda: given.load("s.toml"), "load takes the class of a configuration, got 's.toml'"),
        (lambda: given.compose(Batch, "nothere.txt"), "there is no file nothere.txt"),
        (lambda: given.resolve({"size": 1}), "resolve takes a configuration, got {size: 1}"),
        (lambda: given.resolve(Batch), "resolve takes a configuration, got "),
        (lambda: given.fingerprint({}), "fingerprint takes a configuration, got {}"),
        (lambda: given.differences("a", "b"), "; resolve(compose(ROOT, 'a').draft) is one, where"),
        (
            lambda: given.differences(Batch(), Batch()),
            "takes a resolved configuration, got a draft",
        ),
        (lambda: given.fingerprint("a"), "got 'a'; compose(ROOT, 'a').draft is one, where ROOT"),
        (lambda: given.record_files("a"), "record_files takes a resolved configuration, got 'a'"),
        (lambda: given.json_schema({}), "json_schema takes the class of a configuration"),
        (lambda: given.verify(sp.resolve(Batch()), {"file"}), "'file'. Did you mean files?"),
        (lambda: given.verify(Batch()), "verify takes a resolved configuration, got a draft"),
        (lambda: given.cautions_of(Batch()), "cautions_of takes a resolved configuration"),
        (lambda: given.is_set(Batch(), "sise"), "Did you mean size?"),
        (lambda: given.ref("jay*"), "ref('jay*') cannot be read as arithmetic on fields"),
        (lambda: given.Period("3 stps"), "Period('3 stps') has an unknown unit 'stps'"),
        (lambda: given.DType("bf61"), "Did you mean bfloat16?"),
        (lambda: given.ByteSize("3 XB"), "ByteSize('3 XB') has an unknown unit"),
    ],
)
def test_wrong_arguments_are_refused_in_words(call: Callable[[], object], words: str) -> None:
    with pytest.raises(sp.SetpointError) as caught:
        call()
    assert words in str(caught.value)


def test_two_presets_of_one_name_in_one_module() -> None:
    text = "import setpoint as sp\nfrom tests.config.sample import Batch\n"
    one = '@sp.preset\ndef twice() -> Batch:\n    """It."""\n    return Batch()\n'
    names = {"__name__": "somewhere"}
    try:
        for _ in range(2):  # a module that is loaded again
            exec(compile(text + one, "somewhere.py", "exec"), names)
        with pytest.raises(TypeError, match="somewhere defines two presets 'twice'"):
            exec(compile(text + one + one, "somewhere.py", "exec"), names)
    finally:
        presets.pop("twice", None)


def test_a_role_of_another_kind() -> None:
    role: Any = "identity"
    with pytest.raises(SetpointError, match="role='identity' is not a Role"):
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
    ("text", "message"),
    [
        ("1 / 0", "it: importing broken failed: ZeroDivisionError: division by zero (broken.py:1)"),
        (
            "import absent_module",
            "it: importing broken failed: there is no module 'absent_module' (broken.py:1)",
        ),
        ("def", "it: importing broken failed: broken.py:1: SyntaxError: invalid syntax"),
    ],
)
def test_what_goes_wrong_while_importing_is_told(folder: Path, text: str, message: str) -> None:
    (folder / "broken.py").write_text(text)
    with pytest.raises(SetpointError) as caught:
        import_user_module("broken", "it")
    assert str(caught.value).startswith(message)


def test_errors_of_a_function_are_told_with_their_line(folder: Path) -> None:
    def fails() -> None:
        raise KeyError("absent")

    with pytest.raises(SetpointError, match=r"the preset failed: KeyError: 'absent' \(.*\.py:\d+"):
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
    with pytest.raises(SetpointError, match="x in plain is of type int, not a function"):
        find_user_function("plain:x")
    with pytest.raises(SetpointError, match=r"'\.x' is not a module; expected module:function"):
        find_user_function(".x:make")
    with pytest.raises(SetpointError, match="has no function 'mak'. Did you mean make"):
        find_user_function("plain:mak")
    with pytest.raises(SetpointError, match="named without .py: did you mean plain"):
        import_user_module("plain.py", "--import plain.py")
