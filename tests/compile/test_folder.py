"""The folder for compiled code: made, or refused in words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from setpoint.compile.checks import make_folder, why_unfit
from setpoint.config import SetpointError


def test_a_folder_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert why_unfit(folder) is None
    assert not folder.exists()
    make_folder(folder)
    make_folder(folder)
    assert folder.is_dir()


def test_what_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert why_unfit(tmp_path / "file") == f"{tmp_path / 'file'} is no folder"
    with pytest.raises(SetpointError, match=r"compile\.cache = .*file/b: .*file is no folder"):
        make_folder(tmp_path / "file" / "b")


def test_what_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(SetpointError, match="no permission"):
        make_folder(tmp_path / "b")


def test_what_the_disk_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, **_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(SetpointError, match="it cannot be made: No space left on device"):
        make_folder(tmp_path / "b")
