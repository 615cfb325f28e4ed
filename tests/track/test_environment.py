"""The record of where and how a process runs."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from setpoint.track import environment as module
from setpoint.track.environment import code_revision, environment


def test_what_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setenv("NCCL_API_KEY", "hidden")
    monkeypatch.setenv("WORLD_SIZE", "4")
    record = environment(directory=tmp_path, arguments=["train", "--api_key=x"])
    assert json.loads(json.dumps(record)) == record
    assert record["unread"] == {}
    assert record["command"] == ["train", "--api_key=***"]
    assert record["code"]["user"]["root"] is None
    # PyPI's builds for GPUs are 2.11.0 to pip and 2.11.0+cu130 to themselves.
    assert record["packages"]["torch"] == version("torch")
    assert record["torch"]["version"] == torch.__version__
    assert record["python"]["version"].startswith("3.")
    assert record["processor"]["cores"] >= 1 and record["memory_bytes"] > 0
    assert record["threads"]["torch"] == torch.get_num_threads()
    assert record["threads"]["omp_wait_policy"] == "PASSIVE"
    assert record["world"]["size"] == 4
    assert record["variables"]["OMP_WAIT_POLICY"] == "PASSIVE"
    assert "NCCL_API_KEY" not in record["variables"]


def test_the_users_repository_and_ours(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    record = environment(directory=tmp_path)["code"]
    assert record["user"]["root"] == str(tmp_path.resolve())
    assert record["setpoint"]["root"] != record["user"]["root"]
    ours = environment(directory=Path(module.__file__).parent)["code"]
    if ours["user"]["root"] is not None:
        assert ours["setpoint"] == "the same repository"


def test_what_cannot_change_is_read_once_and_the_users_code_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []

    def revision(directory: Path) -> dict[str, object]:
        asked.append(directory)
        return {"root": None, "revision": len(asked)}

    module._own_code.cache_clear()
    monkeypatch.setattr(module, "code_revision", revision)
    first, second = environment(directory=tmp_path), environment(directory=tmp_path)
    module._own_code.cache_clear()
    package = Path(module.__file__).parent
    assert asked == [tmp_path, package, tmp_path]
    assert first["code"]["user"] != second["code"]["user"]
    assert first["code"]["setpoint"] == second["code"]["setpoint"]
    # A record may be changed; the next one is not.
    first["packages"].clear()
    first["code"]["setpoint"].clear()
    third = environment(directory=tmp_path)
    assert third["packages"] == second["packages"] != {}


def test_it_never_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("gone")

    module._packages.cache_clear()
    monkeypatch.setattr(module.metadata, "distributions", fail)
    monkeypatch.setattr(module.Path, "cwd", fail)
    monkeypatch.setenv("WORLD_SIZE", "many")
    record = environment()
    assert record["packages"] is None and record["code"] is None and record["world"] is None
    assert record["unread"]["packages"] == "RuntimeError: gone"
    assert set(record["unread"]) == {"packages", "code", "directory", "world"}


def test_it_imports_no_torch() -> None:
    code = (
        "import sys; from setpoint.track.environment import environment; "
        "record = environment(); print(record['torch']['imported'], 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


# Which code ran, from real repositories.


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
