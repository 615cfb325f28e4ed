from __future__ import annotations

import sys
from pathlib import Path

import pytest

from setpoint.config import SetpointError
from setpoint.config.values.user_code import (
    call_user_function,
    find_user_function,
    import_user_module,
)


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
            "it: importing broken failed: there is no module 'absent_module', which broken.py:1",
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


def test_what_is_no_function_and_what_is_no_name_of_a_module(folder: Path) -> None:
    (folder / "plain.py").write_text("x = 3\n\ndef make():\n    return x\n")
    with pytest.raises(SetpointError, match="x in plain is not a function but of type int"):
        find_user_function("plain:x")
    with pytest.raises(SetpointError, match="has no function 'mak'. Did you mean make"):
        find_user_function("plain:mak")
    with pytest.raises(SetpointError, match="named without .py: did you mean plain"):
        import_user_module("plain.py", "--import plain.py")
