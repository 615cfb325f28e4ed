from __future__ import annotations

import pytest

from setpoint.cli import revision as calls
from setpoint.config import SetpointError

from .conftest import CommandLine
from .repository import Repository


def test_names_and_files(cli: CommandLine, git: Repository) -> None:
    git("tag", "-a", "v1", "-m", "x")
    commit = git.commit({"ä/b c.toml": "", "new\nline.toml": ""})
    here = str(cli.folder)
    assert calls.repository_of(str(cli.folder / "ä")) == here
    assert calls.branches_and_tags(here) == ["main", "v1"]
    assert calls.commit_of(here, "main") == commit
    assert calls.commit_of(here, "v1") == git("rev-parse", "HEAD~1")
    assert set(calls.files_at(here, commit)) == {
        "small.toml", "own.py", "ä/b c.toml", "new\nline.toml",
    }  # fmt: skip


@pytest.mark.parametrize(
    "name", ["--help", "-x", "nosuch", "a\0b", "HEAD:small.toml", "", "..", "@{9}"]
)
def test_what_is_no_commit(cli: CommandLine, git: Repository, name: str) -> None:
    assert calls.commit_of(str(cli.folder), name) is None


def test_no_repository(cli: CommandLine, git: Repository) -> None:
    assert calls.repository_of(str(cli.folder.parent)) is None
    assert calls.repository_of(str(cli.folder / ".git")) is None


def test_a_repository_that_git_refuses(cli: CommandLine, git: Repository) -> None:
    (cli.folder / ".git" / "config").write_text("[core\n")
    with pytest.raises(SetpointError, match="git refuses to read the repository of .*bad config"):
        calls.repository_of(str(cli.folder))


def test_a_commit_whose_files_are_lost(cli: CommandLine, git: Repository) -> None:
    commit = git("rev-parse", "HEAD")
    for path in (cli.folder / ".git" / "objects").rglob("*"):
        if path.is_file() and path.parent.name + path.name != commit:
            path.unlink()
    (cli.folder / "out").mkdir()
    for call in (
        lambda: calls.extract(str(cli.folder), commit, str(cli.folder / "out")),
        lambda: calls.files_at(str(cli.folder), commit),
    ):
        with pytest.raises(SetpointError, match="git cannot"):
            call()
    assert not (cli.folder / "out.tar").exists()
