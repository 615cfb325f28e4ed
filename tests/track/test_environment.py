"""The record of where and how a process runs, without its secrets; peaks of GPUs by name."""

import json
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from setpoint.track import environment as module
from setpoint.track.accelerators import peak_of
from setpoint.track.environment import code_revision, environment
from setpoint.track.redact import hide_secrets, is_secret_name, redact_command, without_secrets


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


def test_no_repository_no_commit_no_branch(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
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
    assert "truncated: it has " in record["unread"]["diff"]


def test_without_git_and_with_one_that_hangs(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(command: list[str], **options: object) -> None:
        raise subprocess.TimeoutExpired(command, 10)

    with monkeypatch.context() as patch:
        patch.setenv("PATH", "")
        assert code_revision(repository)["unread"] == {"root": "git is not installed"}
    monkeypatch.setattr(module.subprocess, "run", hang)
    assert code_revision(repository)["unread"] == {"root": "git took longer than 10 s"}


def test_secret_names() -> None:
    for name in ("HF_TOKEN", "--tracking.wandb.api_key", "AWS_SECRET_ACCESS_KEY", "api-key"):
        assert is_secret_name(name)
    for name in ("--tokens", "tokenizer.type", "keys", "monkey", "--keep", "seed"):
        assert not is_secret_name(name)


def test_command() -> None:
    command = [
        "setpoint", "train", "tiny", "--optimizer.lr", "3e-4", "tracking.wandb.api_key=abc",
        "--hub.token", "def", "--token=ghi", "--password", "--steps", "5",
        "--data=https://me:pw@host/x", "hf_abcdefghijklmnopqrstuvwxyz", "batch.tokens=4096",
    ]  # fmt: skip
    recorded = redact_command(command)
    assert recorded == [
        "setpoint", "train", "tiny", "--optimizer.lr", "3e-4", "tracking.wandb.api_key=***",
        "--hub.token", "***", "--token=***", "--password", "--steps", "5",
        "--data=https://***@host/x", "***", "batch.tokens=4096",
    ]  # fmt: skip


def test_texts_and_data() -> None:
    assert hide_secrets("git@host:x https://host/x@y") == "git@host:x https://host/x@y"
    assert hide_secrets("key=AKIAABCDEFGHIJKLMNOP;") == "key=***;"
    url, hidden = "https://me:hunter2@host", "https://***@host"
    data = {"a": [url, 3, None], url: {"b": (url,)}}
    assert without_secrets(data) == {"a": [hidden, 3, None], hidden: {"b": [hidden]}}


@pytest.mark.parametrize(
    ("name", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4), ("NVIDIA H100 PCIe", 756.5), ("NVIDIA H100 NVL", 835.5),
        ("NVIDIA H200", 989.4), ("NVIDIA GH200 480GB", 989.4), ("NVIDIA B200", 2250),
        ("NVIDIA GB200", 2500), ("NVIDIA A100-SXM4-80GB", 312), ("NVIDIA A100-PCIE-40GB", 312),
        ("NVIDIA A10", 125), ("NVIDIA A40", 149.7), ("NVIDIA L4", 121), ("NVIDIA L40", 181),
        ("NVIDIA L40S", 362.05), ("Tesla V100-SXM2-16GB", 125), ("Tesla V100-PCIE-32GB", 112),
        ("Tesla T4", 65), ("NVIDIA GeForce RTX 4090", 165.2), ("AMD Instinct MI300X", 1307.4),
    ],
)  # fmt: skip
def test_peaks_by_the_names_that_drivers_give(name: str, tera: float) -> None:
    peak = peak_of(name)
    assert peak is not None
    assert peak.flops == tera * 1e12
    assert peak.source


@pytest.mark.parametrize(
    "name", ["", "AMD EPYC", "NVIDIA RTX A1000", "NVIDIA A10G", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"]
)
def test_names_without_a_peak(name: str) -> None:
    assert peak_of(name) is None
