"""Small files replaced in one step."""

import os
from pathlib import Path

import pytest

from setpoint.config import RunError
from setpoint.files.atomic import write_json, write_text

from ..support.snapshots import refused


def test_a_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    write_text(path, "one\n")
    write_text(path, "zwölf\n")
    assert path.read_bytes() == "zwölf\n".encode()
    assert [p.name for p in tmp_path.iterdir()] == ["config.toml"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failing_disk_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "config.json"
    write_json(path, {"lr": 0.1})

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with refused(RunError):
        write_json(path, {"lr": 0.2})
    assert path.read_text() == '{\n  "lr": 0.1\n}\n'
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "x.json", float("nan"))
    with pytest.raises(TypeError):
        write_json(tmp_path / "x.json", object())
    with refused(RunError):
        write_text(tmp_path / "gone" / "config.toml", "")
    assert list(tmp_path.iterdir()) == []
