"""Two processes and one run directory."""

import errno
import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from setpoint.config import SetpointError
from setpoint.files import lock
from setpoint.files.lock import RunLock, refuse_locked
from setpoint.track.run_directory import RunDirectory

from ..support.snapshots import refused

# Newer Pythons warn of forks beside threads; these children start none and end with _exit.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

Spawn = Callable[[Path], subprocess.Popen[str]]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    script = Path(__file__).with_name("locking.py")
    children: list[subprocess.Popen[str]] = []

    def start(path: Path) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, str(script), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()


def first_line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def test_kill_9_frees_the_lock(tmp_path: Path, spawn: Spawn) -> None:
    run = tmp_path / "run"
    holder = spawn(run)
    assert first_line(holder) == "locked"
    holder.kill()
    holder.wait()
    assert str(holder.pid) in (run / ".lock").read_text()
    with RunDirectory.create(run):
        assert str(os.getpid()) in (run / ".lock").read_text()
    assert (run / ".lock").read_text() == ""


def test_a_race_has_one_winner(tmp_path: Path, spawn: Spawn) -> None:
    run = tmp_path / "run"
    children = [spawn(run) for _ in range(4)]
    lines = [first_line(child) for child in children]
    winners = [c.pid for c, line in zip(children, lines, strict=True) if line == "locked"]
    assert len(winners) == 1
    others = [line for line in lines if line != "locked"]
    assert len(others) == 3
    for line in others:
        assert re.search(rf"is in use by process {winners[0]};", line), line


@pytest.mark.parametrize("text", ['{"pid": 12, "host": "node7"}\n', ""])
def test_the_holder_is_named(tmp_path: Path, text: str) -> None:
    held = RunLock(tmp_path / ".lock")
    (tmp_path / ".lock").write_text(text)
    with refused():
        RunLock(tmp_path / ".lock")
    held.release()
    held.release()


def test_a_forked_worker_does_not_keep_the_lock(tmp_path: Path) -> None:
    """A trainer is killed; a data worker that it forked lives a little longer."""
    told, tell = os.pipe()
    wait, end = os.pipe()
    trainer = os.fork()
    if trainer == 0:
        held = RunLock(tmp_path / ".lock")
        os.close(end)
        if os.fork() == 0:
            os.write(tell, b"forked")
        os.read(wait, 1)
        os._exit(0 if held else 1)
    os.close(wait)
    assert os.read(told, 6) == b"forked"
    os.kill(trainer, signal.SIGKILL)
    os.waitpid(trainer, 0)
    try:
        RunLock(tmp_path / ".lock").release()
    finally:
        os.close(end)
        os.close(told)
        os.close(tell)


def test_the_parent_keeps_the_lock_when_a_worker_ends(tmp_path: Path) -> None:
    held = RunLock(tmp_path / ".lock")
    pid = os.fork()
    if pid == 0:
        held.release()
        os._exit(0)
    os.waitpid(pid, 0)
    with pytest.raises(SetpointError):
        RunLock(tmp_path / ".lock")
    held.release()


def test_no_locks_on_this_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with refused(), monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refuse)
        RunDirectory.create(tmp_path / "runs" / "run")
    assert not (tmp_path / "runs").exists()


def test_processes_that_only_look_refuse_no_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks look at the same time, and one that looks delays the one that writes."""
    path = tmp_path / ".lock"
    RunLock(path).release()
    waited: list[float] = []
    with path.open("r+") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        refuse_locked(path)

        def look_away(seconds: float) -> None:
            waited.append(seconds)
            fcntl.flock(looking, fcntl.LOCK_UN)

        monkeypatch.setattr(time, "sleep", look_away)
        RunLock(path).release()
    assert len(waited) == 1


@pytest.mark.parametrize("again", [False, True])
def test_a_file_that_has_been_removed_is_not_what_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Opened before another process removes it, and locked after: it would keep nobody out."""
    path, take, left = tmp_path / ".lock", lock._flock, [1]

    def remove_first(descriptor: int, kind: int) -> None:
        take(descriptor, kind)
        if again or left:
            left.clear()
            path.unlink()

    monkeypatch.setattr(lock, "_flock", remove_first)
    if again:
        with refused():
            RunLock(path)
        return
    first = RunLock(path)
    monkeypatch.undo()
    with pytest.raises(SetpointError, match=f"in use by process {os.getpid()}"):
        RunLock(path)
    first.release()
