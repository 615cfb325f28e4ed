"""`latest` and `best` as files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from setpoint.checkpoint.pointers import StagedPointer, point, read_pointer, readable_pointer
from setpoint.config import SetpointError


def test_a_pointer_moves_when_told(tmp_path: Path) -> None:
    assert read_pointer(tmp_path, "latest") is None
    point(tmp_path, "latest", 1)
    staged = StagedPointer(tmp_path, "latest", 2)
    assert read_pointer(tmp_path, "latest") == 1
    staged.move()
    assert read_pointer(tmp_path, "latest") == 2
    assert [p.name for p in tmp_path.iterdir()] == ["latest"]


def test_a_staged_pointer_can_be_dropped(tmp_path: Path) -> None:
    staged = StagedPointer(tmp_path, "best", 2)
    staged.discard()
    staged.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_pointer_can_go(tmp_path: Path) -> None:
    point(tmp_path, "best", 1)
    point(tmp_path, "best", None)
    point(tmp_path, "best", None)
    assert read_pointer(tmp_path, "best") is None


@pytest.mark.parametrize("content", [b"", b"step-1\n", b"\xff\xfe", b"../step-00000001\n"])
def test_a_broken_pointer_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "latest").write_bytes(content)
    with pytest.raises(SetpointError, match="latest names no checkpoint"):
        read_pointer(tmp_path, "latest")
    assert readable_pointer(tmp_path, "latest") is None


def test_a_pointer_written_by_hand(tmp_path: Path) -> None:
    (tmp_path / "latest").write_text("step-00000012")
    assert read_pointer(tmp_path, "latest") == 12


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_folder(path: Path) -> None:
    path.mkdir()


def a_link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def a_huge_file(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 42)


@pytest.mark.parametrize("odd", [a_pipe, a_folder, a_link_to_itself, a_huge_file])
def test_what_is_no_pointer_is_not_read(tmp_path: Path, odd: Callable[[Path], None]) -> None:
    odd(tmp_path / "latest")
    with pytest.raises(SetpointError, match=r"latest (cannot be read|names no checkpoint)"):
        read_pointer(tmp_path, "latest")
    assert readable_pointer(tmp_path, "latest") is None
