"""The manifest's text and versions."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from setpoint.checkpoint.manifest import (
    FORMAT,
    DamagedCheckpoint,
    Manifest,
    _seal,
    read_manifest,
    unreadable,
)
from setpoint.config import SetpointError
from setpoint.files.durable import Written


def test_round_trip(tmp_path: Path) -> None:
    manifest = Manifest(5, 0.1, {"b": Written(1, "x"), "a": Written(2, "y")})
    (tmp_path / "manifest.json").write_bytes(manifest.render())
    assert read_manifest(tmp_path) == manifest
    assert json.loads(manifest.render())["format"] == FORMAT == 1


@pytest.mark.parametrize("entry", [{"bytes": 20}, {"blake3": "x"}, [], None, "x"])
def test_entries_that_none_writes(tmp_path: Path, entry: object) -> None:
    """Sealed rightly, by whom nobody knows."""
    content = {"format": FORMAT, "step": 5, "metric": None, "files": {"a": entry}}
    (tmp_path / "manifest.json").write_bytes(_seal(content))
    with pytest.raises(DamagedCheckpoint):
        read_manifest(tmp_path)
    (tmp_path / "manifest.json").write_bytes(_seal({**content, "format": "1", "files": {}}))
    with pytest.raises(DamagedCheckpoint):
        read_manifest(tmp_path)


def test_a_newer_format_is_no_damage(tmp_path: Path) -> None:
    newer = {"format": FORMAT + 1, "step": 5, "something": "else"}
    (tmp_path / "manifest.json").write_bytes(_seal(newer))
    with pytest.raises(
        SetpointError, match=f"has the format {FORMAT + 1}.*up to {FORMAT}"
    ) as caught:
        read_manifest(tmp_path)
    assert not isinstance(caught.value, DamagedCheckpoint)


@pytest.mark.parametrize("text", ["", "[]", "{}", "1", '{"blake3": 1}', "\xff", "{" * 100])
def test_what_is_no_manifest(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(DamagedCheckpoint, match=r"manifest.json"):
        read_manifest(tmp_path)


def test_a_missing_permission_is_no_damage(tmp_path: Path) -> None:
    denied = unreadable(tmp_path, "state.json", PermissionError(errno.EACCES, "Permission denied"))
    assert not isinstance(denied, DamagedCheckpoint)
    assert "cannot be read: state.json: Permission denied" in str(denied)
    broken = unreadable(tmp_path, "state.json", OSError(errno.EIO, "Input/output error"))
    assert isinstance(broken, DamagedCheckpoint)
