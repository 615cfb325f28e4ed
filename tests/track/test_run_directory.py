"""What a run directory holds, and what is refused."""

import errno
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from setpoint.config import RunError, SetpointError
from setpoint.files import lock
from setpoint.track.jsonl import EventLog, read_jsonl
from setpoint.track.run_directory import FILES, FOLDERS, RunDirectory

from ..checkpoint.disk import Operation, watched
from ..support.snapshots import refused


def listing(path: Path) -> list[str]:
    return sorted(str(p.relative_to(path)) for p in path.rglob("*"))


def test_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "tiny"
    with RunDirectory.create(path) as run:
        assert listing(path) == [".lock", "checkpoints", "logs", "traces"]
        assert run.is_new
        assert run.name == "tiny"
        run.write_json("config.json", {"seed": 1})
        run.write_text("config.toml", "seed = 1\n")
    assert (run.checkpoints, run.logs) == tuple(path / f for f in FOLDERS[:2])
    assert run.metrics.name in FILES and run.events.name in FILES and run.config.name in FILES
    assert run.config.read_text() == '{\n  "seed": 1\n}\n'
    (path / "plot.png").write_text("")  # of the user
    with RunDirectory.create(path) as run:
        assert not run.is_new
    assert (path / "plot.png").exists()


def test_the_start_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path).close()
    (tmp_path / "config.json.tmp-999999999").write_text("{")
    (tmp_path / "metrics.jsonl").write_text("")
    with RunDirectory.create(tmp_path) as run:
        assert run.is_new
    assert not list(tmp_path.glob("*.tmp-*"))


def test_a_withdrawn_run_directory_leaves_what_was_there(tmp_path: Path) -> None:
    """Of no run, of one whose start was killed, and of a recorded one; files of others stay too."""
    for there in ([], ["run/"], ["run/.lock", "run/checkpoints/", "run/logs/rank-0.log"]):
        root = tmp_path / str(len(there))
        for name in there:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).mkdir() if name.endswith("/") else (root / name).touch()
        before = listing(root)
        run = RunDirectory.create(root / "run")
        (run.path / "heartbeats").mkdir()
        (run.path / "heartbeats" / "rank-1.json.tmp-7").touch()
        (run.logs / "rank-1.log").symlink_to(tmp_path)
        run.events.touch()
        run.withdraw()
        assert listing(root) == before
        run.withdraw()
    run = RunDirectory.create(tmp_path / "other" / "run")
    (run.path / "notes.txt").touch()
    run.withdraw()
    assert listing(tmp_path / "other") == ["run", "run/notes.txt"]
    with RunDirectory.create(tmp_path / "recorded") as run:
        run.write_json("config.json", {})
        before = listing(tmp_path)
        run.withdraw()
    assert listing(tmp_path) == before


def test_a_run_directory_that_is_created_while_it_is_withdrawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another process, before each step: it is refused, or has a whole one, and has it alone."""
    monkeypatch.setattr(lock, "PAUSE", 0)
    path, moment, made = tmp_path / "runs" / "tiny", 0, list[RunDirectory]()
    refusals = 0
    while True:
        first, left = RunDirectory.create(path), [moment]

        def meet(operation: Operation, left: list[int] = left) -> None:
            nonlocal refusals
            left[0] -= 1
            if left[0] == -1:
                try:
                    made.append(RunDirectory.create(path))
                except SetpointError as error:
                    assert "is in use by" in str(error)
                    refusals += 1

        with watched(tmp_path, before=meet):
            first.withdraw()
        if left[0] >= 0:
            break
        if made:
            second = made.pop()
            assert listing(path) == [".lock", "checkpoints", "logs", "traces"]
            with pytest.raises(SetpointError, match="is in use by"):
                RunDirectory.create(path)
            second.withdraw()
            for folder in (path, path.parent):  # which were there when it was made
                if folder.exists():
                    folder.rmdir()
        assert not listing(tmp_path)
        moment += 1
    assert 3 <= refusals < moment


def test_a_folder_that_leads_elsewhere_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    """Of links within the run, as trackers make them, of files and of the run itself, none is."""
    away, real, path = tmp_path / "away", tmp_path / "real", tmp_path / "run"
    away.mkdir()
    real.mkdir()
    path.symlink_to(real)
    RunDirectory.create(path).close()
    (path / "logs" / "wandb").mkdir()
    (path / "logs" / "wandb" / "latest-run").symlink_to("..")
    (path / "logs" / "debug.log").symlink_to(tmp_path / "gone.log")
    RunDirectory.create(path).close()
    for name in ("checkpoints", "logs/wandb/files"):
        link = path / name
        if link.exists():
            link.rmdir()
        link.symlink_to(away)
        (path / ".lock").write_text("")
        before = listing(tmp_path)
        for take in (RunDirectory.check, RunDirectory.create):
            with refused():
                take(path)
        assert listing(tmp_path) == before and not (path / ".lock").read_text()
        link.unlink()


@pytest.mark.parametrize("names", [["main.py"], ["config.json", "model.safetensors"], ["logs"]])
def test_other_directories_are_refused_and_untouched(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).write_text("mine")
    before = listing(tmp_path)
    with refused():
        RunDirectory.create(tmp_path)
    assert listing(tmp_path) == before


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with refused():
        RunDirectory.create(tmp_path / "file")
    with refused():
        RunDirectory.create(tmp_path / "file" / "run")


def test_a_closed_run_directory_is_not_written(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path) as run, pytest.raises(ValueError, match=r"other.json"):
        run.write_json("other.json", {})
    with pytest.raises(ValueError, match="not locked"):
        run.write_json("config.json", {})
    run.close()
    assert not run.config.exists()


UNWRITABLE = """
import os, sys
from setpoint.config import SetpointError
from setpoint.track.run_directory import RunDirectory
if os.getuid() == 0:
    os.setuid(65534)
for path in sys.argv[1:]:
    try:
        RunDirectory.create(path)
    except SetpointError as error:
        print(error)
"""


def test_unwritable_places(tmp_path: Path) -> None:
    """As a user without rights, since root is refused nothing."""
    # The way there must be open to that user; pytest's own folder is not.
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        old = root / "old"
        with RunDirectory.create(old) as run:
            run.write_json("config.json", {})
        (root / "secret").mkdir()
        (root / "secret").chmod(0)
        for path in (root, old):
            path.chmod(0o555)
        (old / ".lock").chmod(0o444)
        before = listing(root)
        places = [root / "new", old, root / "secret", root / "secret" / "run"]
        done = subprocess.run(
            [sys.executable, "-c", UNWRITABLE, *map(str, places)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [
            f"run directory {root / 'new'} cannot be created: Permission denied",
            f"run directory {old} cannot be written: .lock: Permission denied",
            f"run directory {root / 'secret'} cannot be read: Permission denied",
            f"run directory {root / 'secret' / 'run'} cannot be read: Permission denied",
        ]
        assert listing(root) == before
        for path in (root, old, root / "secret"):
            path.chmod(0o755)


def test_a_full_disk_frees_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mkdir = os.mkdir

    def full(path: str, *arguments: object) -> None:
        if str(path).endswith("traces"):
            raise OSError(28, "No space left on device", str(path))
        mkdir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", full)
        with refused():
            RunDirectory.create(tmp_path / "run")
    assert not listing(tmp_path)
    RunDirectory.create(tmp_path / "run").close()


def test_a_record_whose_last_file_cannot_be_moved_is_refused_in_words(tmp_path: Path) -> None:
    texts: dict[str, str] = dict.fromkeys(("config.json", "config.toml", "origins.json"), "{}")

    def fail(operation: Operation) -> None:
        if (operation.kind, operation.other) == ("rename", "run/origins.json"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with RunDirectory.create(tmp_path / "run") as run:
        run.write_record(texts, 1)
        with watched(tmp_path, before=fail), refused(RunError):
            run.write_record(texts, 1)


# The history of a run.


def test_events_have_a_time_and_stay(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    before = datetime.now(UTC)
    for event in ("start", "resume"):
        log = EventLog(path)
        log.write(event, step=3, accepted=[])
        log.close()
    rows = read_jsonl(path)
    assert [(r["event"], r["step"], r["accepted"]) for r in rows] == [
        ("start", 3, []),
        ("resume", 3, []),
    ]
    for row in rows:
        assert row["time"].endswith("Z")
        assert abs((datetime.fromisoformat(row["time"]) - before).total_seconds()) < 60


def test_a_fault_does_not_give_a_secret_away(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    error = repr(OSError("cannot reach https://me:hunter2@host/x?token=hunter2"))
    log.write("fault", error=error, seen=[{"https://me:hunter2@host": 1}])
    log.close()
    text = (tmp_path / "events.jsonl").read_text()
    assert "hunter2" not in text
    assert "https://***@host/x?token=***" in text


def test_the_reason_why_no_run_directory_can_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    for flag in (0, os.ST_RDONLY):
        monkeypatch.setattr(os, "statvfs", lambda _, flag=flag: SimpleNamespace(f_flag=flag))
        with refused():
            RunDirectory.check(tmp_path / "run")
