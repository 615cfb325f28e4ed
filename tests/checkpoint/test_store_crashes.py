"""Processes that die, and disks that fill up, in the middle of a save."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ..forks import Forks


def run(forks: Forks, mode: str, root: Path, *more: int) -> dict[str, Any]:
    script = Path(__file__).with_name("crashing.py")
    status, output = forks.run([str(script), mode, str(root), *map(str, more)], root.parent)
    assert status == 0, output
    return json.loads(output.splitlines()[-1])


@pytest.mark.parametrize("kills", [16, pytest.param(300, marks=pytest.mark.slow)])
def test_kill_at_random_moments(forks: Forks, tmp_path: Path, kills: int) -> None:
    result = run(forks, "random", tmp_path / "checkpoints", kills)
    assert result["kills"] == kills
    # The test would prove nothing if the kills had missed the saves.
    assert result["middle"] >= kills // 8
    assert result["steps"] >= kills // 4


def test_kill_before_every_change_of_the_disk(forks: Forks, tmp_path: Path) -> None:
    result = run(forks, "everywhere", tmp_path)
    assert result["save"]["points"] > 10
    assert result["save_best"]["points"] > result["save"]["points"]
    assert result["save_again"]["recoveries"] > 10
    assert result["set_aside"]["points"] > 3


def test_file_size_limit(forks: Forks, tmp_path: Path) -> None:
    result = run(forks, "limit", tmp_path / "checkpoints")
    assert "step 2 could not be saved" in result["message"]
    assert "File too large; step 1 is still there" in result["message"]
    assert "checkpoint.keep" in result["message"]
    assert result["intact"]
    assert result["step"] == 1
    assert result["then"] == [1, 2]


@pytest.mark.parametrize("target", ["write", "fsync", "rename", "mkdir"])
def test_failing_disk_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """Fail the first, second, ... call of one kind until a save gets through."""
    import builtins
    import errno
    import os

    import torch

    from setpoint.checkpoint import durable
    from setpoint.checkpoint.store import CheckpointStore
    from setpoint.config import RunError

    root = tmp_path / "checkpoints"
    store = CheckpointStore(root, keep=1)
    tensors = {"model": {"a": torch.ones(3), "b": torch.zeros(2)}}
    store.save(1, tensors, {"n": 1}, metric=1.0)

    def snapshot() -> dict[str, bytes]:
        return {str(p): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}

    before = snapshot()
    calls = 0
    fail_at = 0

    def count() -> None:
        nonlocal calls
        calls += 1
        if calls == fail_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class Full:
        def __init__(self, path: Path, mode: str) -> None:
            self.file = builtins.open(path, mode)  # noqa: SIM115

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *error: object) -> None:
            self.file.close()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

        def write(self, chunk: bytes) -> int:
            count()
            return self.file.write(chunk)

    def counting(function: Any) -> Any:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            count()
            return function(*arguments, **options)

        return wrapper

    if target == "write":
        monkeypatch.setattr(durable, "open", Full, raising=False)
    elif target == "mkdir":
        monkeypatch.setattr(os, "mkdir", counting(os.mkdir))
    else:
        monkeypatch.setattr(os, target, counting(getattr(os, target)))

    failures = 0
    while True:
        calls, fail_at = 0, failures + 1
        try:
            store.save(2, tensors, {"n": 2}, metric=0.5)
        except RunError as error:
            assert "No space left on device" in str(error)
            failures += 1
        else:
            break
        # Once the directory has its name it stays; before that nothing may have changed.
        if store.steps == [1]:
            assert snapshot() == before
        assert not list(root.glob("*.tmp-*"))
        loaded = CheckpointStore(root).load("latest")
        assert loaded.state["n"] == loaded.step
    assert failures >= {"write": 7, "fsync": 6, "rename": 1, "mkdir": 1}[target]
    monkeypatch.undo()
    assert store.steps == [2]
    assert (store.latest, store.best) == (2, 2)
    assert store.load("auto").state == {"n": 2}
