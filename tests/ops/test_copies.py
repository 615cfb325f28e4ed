"""Runs that upload their checkpoints, and go on from them in another place."""

import shutil
import threading
from pathlib import Path
from typing import Any

import fsspec
import pytest

from setpoint.config import RunError
from setpoint.files.lock import is_locked
from setpoint.ops import remote_folder as module
from setpoint.ops.proof import verify_chain
from setpoint.ops.remote_folder import RemoteError
from setpoint.ops.remote_run import RemoteRun
from setpoint.ops.uploads import Uploads
from setpoint.resilience.signals import StopRequest
from setpoint.train.run import rehearse, train

from ..support.snapshots import refused
from ..train.small import assert_same_run, events, small_job

FLAGS = ("schedule=constant", "optimizer.lr=3e-3")
SHORT = ("duration=12 steps", "checkpoint.remote.keep=9")


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing interrupts."""
    return train(small_job(tmp_path_factory.mktemp("oracle"), *FLAGS)).directory


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of 12 steps and its uploads in `bucket`."""
    folder = tmp_path_factory.mktemp("stopped")
    train(small_job(folder, *FLAGS, *SHORT, remote(folder)))
    return folder


def remote(folder: Path) -> str:
    return f"checkpoint.remote.url=file://{folder}/bucket"


def bucket_of(folder: Path) -> Path:
    (found,) = (folder / "bucket").iterdir()
    return found / "checkpoints"


def moved(stopped: Path, folder: Path) -> Path:
    """A copy of the bucket alone."""
    shutil.copytree(stopped / "bucket", folder / "bucket")
    return folder


def test_a_run_on_a_new_machine_equals_the_undisturbed_one(
    oracle: Path, stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, locked, download = moved(stopped, tmp_path), list[bool](), RemoteRun.download

    def downloading(remote: RemoteRun, checkpoint: Any, files: list[str], into: Path) -> None:
        # Another process with the lock would remove the files.
        locked.append(is_locked(into.parents[1] / ".lock"))
        download(remote, checkpoint, files, into)

    monkeypatch.setattr(RemoteRun, "download", downloading)
    run = train(small_job(folder, *FLAGS, remote(folder))).directory
    assert_same_run(run, oracle)
    assert locked and all(locked)
    (resumed,) = events(run, "resume")
    assert resumed["step"] == 12
    assert {row["checkpoint"] for row in events(run, "fetch")} >= {"step-00000012"}
    place = bucket_of(folder)
    assert (place / "latest").read_text() == "step-00000030\n"
    for name in ("latest", "best"):
        step = (run / "checkpoints" / name).read_text().strip()
        assert (place / name).read_text().strip() == step
        assert_same_bytes(run / "checkpoints" / step, place)
    # What lies there is a run directory.
    assert (place.parent / "events.jsonl").read_text().splitlines()[-1].find('"end"') > 0


@pytest.mark.parametrize("damaged", [False, True])
def test_a_directory_without_the_newest_takes_it_from_the_url(
    oracle: Path, stopped: Path, tmp_path: Path, damaged: bool
) -> None:
    folder = moved(stopped, tmp_path)
    shutil.copytree(stopped / "runs", folder / "runs")
    (run,) = (folder / "runs").iterdir()
    newest = run / "checkpoints" / "step-00000012"
    if damaged:
        file = newest / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    else:
        shutil.rmtree(newest)
        (run / "checkpoints" / "latest").write_text("step-00000008\n")
    train(small_job(folder, *FLAGS, remote(folder)))
    assert [row["step"] for row in events(run, "resume")] == [12]
    assert newest.with_name("step-00000012.damaged-1").is_dir() == damaged
    assert_same_run(run, oracle)


def test_a_run_that_comes_back_to_a_machine_has_the_events_of_both(
    stopped: Path, tmp_path: Path
) -> None:
    """In the order in which the chain that comes with it has sealed them."""
    first, second = tmp_path / "first", tmp_path / "second"
    shutil.copytree(stopped, first)
    second.mkdir()
    moved(stopped, second)
    (run,) = (first / "runs").iterdir()
    before = {row["time"] for row in events(run)}
    longer = (*FLAGS, "duration=16 steps", "checkpoint.remote.keep=9")
    train(small_job(second, *longer, remote(second)))
    shutil.rmtree(first / "bucket")
    moved(second, first)
    run = train(small_job(first, *FLAGS, "duration=20 steps", remote(first))).directory
    found = verify_chain(run)
    assert not found.problems and found.events > len(before)
    assert [row["step"] for row in events(run, "resume")] == [12, 16]
    assert before <= {row["time"] for row in events(run)}


def test_damage_at_the_url_and_here_is_passed_over(
    oracle: Path, stopped: Path, tmp_path: Path
) -> None:
    folder = moved(stopped, tmp_path)
    (bucket_of(folder) / "step-00000012" / "optimizer.safetensors").write_bytes(b"")
    flipped = bucket_of(folder) / "step-00000008" / "model.safetensors"
    flipped.write_bytes(flipped.read_bytes()[:-1] + b"\xff")
    run = train(small_job(folder, *FLAGS, remote(folder))).directory
    assert [row["step"] for row in events(run, "resume")] == [4]
    names = {row["checkpoint"] for row in events(run, "damaged")}
    assert names == {"step-00000012", "step-00000008"}
    assert_same_run(run, oracle)


def test_a_run_that_must_not_resume(stopped: Path, tmp_path: Path) -> None:
    folder = moved(stopped, tmp_path)
    with refused():
        train(small_job(folder, *FLAGS, remote(folder), "checkpoint.resume=never"))
    assert not (folder / "runs").exists()


def test_an_outage_stops_no_run_and_the_next_session_uploads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = fsspec.get_filesystem_class("file")
    given = (*FLAGS, *SHORT, remote(tmp_path))
    with monkeypatch.context() as outage:

        def out(*arguments: object, **options: object) -> None:
            if threading.current_thread().name == "setpoint-uploads":
                raise ConnectionError("no route to host")
            raise FileNotFoundError

        for name in ("info", "cat_file", "makedirs"):
            outage.setattr(system, name, out)
        # The service goes away after the run has begun.
        outage.setattr(RemoteRun, "require_writable", lambda run: None)
        with pytest.raises(RunError) as raised:
            train(small_job(tmp_path, *given, "checkpoint.remote.wait_timeout=0.1"))
    assert "no route to host (ConnectionError)" in str(raised.value)
    assert "step-00000012: not uploaded to file://" in str(raised.value)
    (run,) = (tmp_path / "runs").iterdir()
    assert events(run, "end")[-1]["status"] == 0
    assert events(run, "upload_failed")
    assert events(run, "upload_unfinished")
    train(small_job(tmp_path, *given))
    assert (bucket_of(tmp_path) / "latest").read_text() == "step-00000012\n"
    assert_same_bytes(run / "checkpoints" / "step-00000012", bucket_of(tmp_path))


def assert_same_bytes(checkpoint: Path, there: Path) -> None:
    for file in checkpoint.iterdir():
        assert (there / checkpoint.name / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize("url", ["faulty-start://bucket", "file:///proc/nowhere"])
def test_a_url_that_cannot_be_used_is_found_before_the_first_step(tmp_path: Path, url: str) -> None:
    with refused():
        train(small_job(tmp_path, *FLAGS, f"checkpoint.remote.url={url}"))
    assert not (tmp_path / "runs").exists()


def test_a_password_in_a_url_and_a_path_are_refused(tmp_path: Path) -> None:
    for url in ("s3://user:geheim@bucket/runs", "/shared"):
        with refused():
            small_job(tmp_path, f"checkpoint.remote.url={url}")


def test_a_stopped_run_is_not_failed_by_its_uploads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = StopRequest()
    monkeypatch.setattr(Uploads, "_work", lambda self: None)
    real = Uploads.add
    monkeypatch.setattr(Uploads, "add", lambda self, step: stop.request() or real(self, step))
    job = small_job(tmp_path, *FLAGS, remote(tmp_path), "checkpoint.remote.wait_timeout=0")
    outcome = train(job, stop=stop)
    assert outcome.status == 75
    assert events(outcome.directory, "upload_unfinished")[-1]["checkpoints"] == ["step-00000004"]


def test_where_nothing_is_whole_anywhere_no_run_begins_again(stopped: Path, tmp_path: Path) -> None:
    folder = moved(stopped, tmp_path)
    for file in bucket_of(folder).glob("*/model.safetensors"):
        file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    with refused(RunError):
        train(small_job(folder, *FLAGS, remote(folder)))
    assert not list((folder / "runs").glob("*/checkpoints/step-*"))


def test_a_service_that_does_not_answer_at_the_start(
    oracle: Path, stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with checkpoints of its own goes on; one without may lie at the URL."""
    folder = moved(stopped, tmp_path)
    job = small_job(folder, *FLAGS, remote(folder))
    monkeypatch.setattr(module, "PAUSE", 0.0)

    def out(run: RemoteRun) -> list[int]:
        raise RemoteError(f"{run.url} cannot be reached: no route")

    with monkeypatch.context() as outage:
        outage.setattr(RemoteRun, "steps", out)
        with refused(RemoteError):
            train(job)
        assert not (folder / "runs").exists()
    shutil.copytree(stopped / "runs", folder / "runs")
    (run,) = (folder / "runs").iterdir()
    real = RemoteRun.steps
    asked: list[int] = []

    def out_at_first(run: RemoteRun) -> list[int]:
        asked.append(1)
        return real(run) if len(asked) > 5 else out(run)

    monkeypatch.setattr(RemoteRun, "steps", out_at_first)
    train(job)
    assert "no route" in events(run, "fetch_failed")[0]["error"]
    assert [row["step"] for row in events(run, "resume")] == [12]
    assert_same_run(run, oracle)


def test_a_rehearsal_names_what_would_be_fetched(stopped: Path, tmp_path: Path) -> None:
    folder = moved(stopped, tmp_path)
    rows = dict(rehearse(small_job(folder, *FLAGS, remote(folder))))
    assert rows["remote"].startswith("step-00000012 would be fetched from file://")
    assert not (folder / "runs").exists()
