"""Names, pointers, and folders that appear whole."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from setpoint.checkpoint.folder import (
    StagedPointer,
    clear_leftovers,
    directory_name,
    list_checkpoints,
    point,
    read_pointer,
    readable_pointer,
    remove,
    step_of,
)

from ..support.snapshots import refused


def test_names_and_steps(tmp_path: Path) -> None:
    steps = [0, 5, 99_999_999, 100_000_000, 12_345_678_901]
    for step in reversed(steps):
        assert step_of(directory_name(step)) == step
        (tmp_path / directory_name(step)).mkdir()
    assert list(list_checkpoints(tmp_path)) == steps  # by number
    digits = "\u0660" * 7 + "\u0661"  # of Arabic
    for name in ("step-1", "step-000000001", "step-00000001.tmp-1", f"step-{digits}", ""):
        assert step_of(name) is None


def directory(path: Path, content: str) -> Path:
    path.mkdir()
    (path / "file").write_text(content)
    return path


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_remove_after_a_remove_that_failed(tmp_path: Path) -> None:
    directory(tmp_path / f"step-00000001.tmp-{os.getpid()}", "half removed")
    remove(directory(tmp_path / "step-00000001", ""), "step-00000001")
    assert names(tmp_path) == []


def test_clear_leftovers(tmp_path: Path) -> None:
    dead = 999_999_999
    directory(tmp_path / f"step-00000001.tmp-{dead}", "")
    directory(tmp_path / f"step-00000002.tmp-{os.getpid()}", "a former process of this number")
    directory(tmp_path / f"step-00000003.old-{dead}", "the only one")
    directory(tmp_path / f"step-00000004.old-{dead}", "replaced")
    directory(tmp_path / "step-00000004", "")
    directory(tmp_path / f"step-00000005.tmp-{os.getppid()}", "its number is in use again")
    (tmp_path / f"best.tmp-{dead}").write_text("")
    (tmp_path / "notes.tmp-1").write_text("not ours")
    before = names(tmp_path)
    clear_leftovers(tmp_path, own_only=True)
    assert set(before) - set(names(tmp_path)) == {f"step-00000002.tmp-{os.getpid()}"}
    clear_leftovers(tmp_path)
    assert names(tmp_path) == ["notes.tmp-1", "step-00000003", "step-00000004"]
    assert (tmp_path / "step-00000003" / "file").read_text() == "the only one"


def test_a_pointer_moves_when_told(tmp_path: Path) -> None:
    assert read_pointer(tmp_path, "latest") is None
    point(tmp_path, "latest", 1)
    staged = StagedPointer(tmp_path, "latest", 2)
    assert read_pointer(tmp_path, "latest") == 1
    staged.move()
    assert read_pointer(tmp_path, "latest") == 2
    dropped = StagedPointer(tmp_path, "latest", 3)
    dropped.discard()
    dropped.discard()
    assert [p.name for p in tmp_path.iterdir()] == ["latest"]
    (tmp_path / "latest").write_text("step-00000012")  # by hand
    assert read_pointer(tmp_path, "latest") == 12
    point(tmp_path, "latest", None)
    point(tmp_path, "latest", None)
    assert read_pointer(tmp_path, "latest") is None


@pytest.mark.parametrize("content", [b"", b"step-1\n", b"\xff\xfe", b"../step-00000001\n"])
def test_a_broken_pointer_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "latest").write_bytes(content)
    with refused():
        read_pointer(tmp_path, "latest")
    assert readable_pointer(tmp_path, "latest") is None


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
    with refused():
        read_pointer(tmp_path, "latest")
    assert readable_pointer(tmp_path, "latest") is None
