"""Which code ran, from real repositories."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from setpoint.track import environment as module
from setpoint.track.environment import code_revision


def git(directory: Path, *arguments: str) -> str:
    options = ("-c", "user.name=T", "-c", "user.email=t@t", "-c", "init.defaultBranch=main")
    done = subprocess.run(
        ["git", *options, *arguments], cwd=directory, check=True, capture_output=True, text=True
    )
    return done.stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init")
    (tmp_path / "a.py").write_text("one\n")
    (tmp_path / "sub").mkdir()
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    git(tmp_path, "remote", "add", "origin", "https://me:secret@host/repository.git")
    return tmp_path


def test_clean(repository: Path) -> None:
    record = code_revision(repository / "sub")
    assert record == {
        "root": str(repository.resolve()),
        "revision": git(repository, "rev-parse", "HEAD").strip(),
        "branch": "main",
        "remote": "https://***@host/repository.git",
        "dirty": False,
        "diff": "",
        "untracked": [],
        "unread": {},
    }


def test_dirty(repository: Path) -> None:
    (repository / "a.py").write_text("zwölf\n")
    (repository / "new file.py").write_text("new\n")
    record = code_revision(repository)
    assert record["dirty"] is True
    assert "-one\n+zwölf\n" in record["diff"]
    assert record["untracked"] == ["new file.py"]
    # The recorded diff restores what ran.
    git(repository, "checkout", "a.py")
    (repository / "patch").write_text(record["diff"])
    git(repository, "apply", "patch")
    assert (repository / "a.py").read_text() == "zwölf\n"


def test_no_repository_no_commit_no_branch(repository: Path, tmp_path_factory) -> None:  # type: ignore[no-untyped-def]
    outside = tmp_path_factory.mktemp("outside")
    record = code_revision(outside)
    assert record["root"] is None and "not a git repository" in record["unread"]["root"]
    git(outside, "init")
    record = code_revision(outside)
    assert record["revision"] is None and set(record["unread"]) == {"revision", "remote", "diff"}
    git(repository, "checkout", "--detach")
    assert code_revision(repository)["branch"] is None
    missing = code_revision(repository / "none")
    assert missing["unread"] == {"root": "the directory does not exist"}


def test_a_long_diff_is_cut_and_says_so(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DIFF_BYTES", 50)
    (repository / "a.py").write_text("two\n")
    record = code_revision(repository)
    assert len(record["diff"]) == 50
    assert "cut: it has " in record["unread"]["diff"]


def test_without_git(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert code_revision(repository)["unread"] == {"root": "git is not installed"}


def test_git_that_hangs(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], **options: object) -> None:
        raise subprocess.TimeoutExpired(command, 10)

    monkeypatch.setattr(module.subprocess, "run", hang)
    assert code_revision(repository)["unread"] == {"root": "git took longer than 10 s"}
