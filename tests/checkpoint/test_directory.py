"""Publishing, removing, clearing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from setpoint.checkpoint.directory import clear_leftovers, publish, remove


def directory(path: Path, content: str) -> Path:
    path.mkdir()
    (path / "file").write_text(content)
    return path


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_publish_replaces(tmp_path: Path) -> None:
    target = directory(tmp_path / "step-00000001", "old")
    publish(directory(tmp_path / "staged", "new"), target)
    assert (target / "file").read_text() == "new"
    assert names(tmp_path) == ["step-00000001"]


def test_a_failed_publish_gives_the_old_one_its_name_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = directory(tmp_path / "step-00000001", "old")
    staged = directory(tmp_path / "staged", "new")
    rename = os.rename

    def refuse(source: Path, to: Path) -> None:
        if source == staged:
            raise OSError(5, "Input/output error")
        rename(source, to)

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(OSError, match="Input/output"):
        publish(staged, target)
    assert (target / "file").read_text() == "old"
    assert names(tmp_path) == ["staged", "step-00000001"]


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
    directory(tmp_path / f"step-00000005.tmp-{os.getppid()}", "somebody alive")
    (tmp_path / f"best.tmp-{dead}").write_text("")
    (tmp_path / "notes.tmp-1").write_text("not ours")
    clear_leftovers(tmp_path)
    assert names(tmp_path) == [
        "notes.tmp-1",
        "step-00000003",
        "step-00000004",
        f"step-00000005.tmp-{os.getppid()}",
    ]
    assert (tmp_path / "step-00000003" / "file").read_text() == "the only one"
