"""Sessions beside the loop: added sections, logs of faults, and records of the code."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from setpoint.config import Config, RunError, field, log_of
from setpoint.resilience.signals import StopRequest
from setpoint.track.progress import Progress
from setpoint.train.build.components import build_components
from setpoint.train.config import Job
from setpoint.train.loop import Callback, Loop
from setpoint.train.open import compare, open_directory
from setpoint.train.resume import resume
from setpoint.train.run import train
from setpoint.train.run_record import facts_of, start_record
from setpoint.train.run_status import run_status
from setpoint.train.session import Run
from setpoint.train.verdict import StepResult

from ..support.snapshots import refused
from ..support.variants import sections
from .small import Notes, events, small_job


class Watch(Callback):
    """Writes the loss of every so many updates to a file of its own."""

    class Config(Config):
        """Interval of the lines."""

        every: int = field(default=2, ge=1)
        """Updates from one line to the next."""

    def __init__(self, config: Watch.Config, *, job: Job, components: Any, run: Any) -> None:
        self.every = config.every
        self.path = run.path / "watch.txt"

    def after_step(self, loop: Loop, result: StepResult) -> None:
        if loop.position.step % self.every == 0:
            with self.path.open("a") as file:
                file.write(f"{loop.position.step} {result.loss}\n")


class NoCallback(Config, owner=f"{__name__}:build_nothing"):
    """Builds something else."""


def build_nothing(config: NoCallback, **runtime: object) -> str:
    return "nothing"


@pytest.fixture
def added() -> Iterator[None]:
    with sections(Job, watch=Watch.Config, idle=NoCallback, failing=Failing.Config):
        yield


@pytest.mark.usefixtures("added")
def test_an_added_section_is_a_callback(tmp_path: Path) -> None:
    job = small_job(tmp_path, "duration=5 steps", "watch.every=2")
    run = train(job).directory
    steps = [line.split()[0] for line in (run / "watch.txt").read_text().splitlines()]
    assert steps == ["2", "4"]
    assert train(job, directory=run).final_position.step == 5


@pytest.mark.usefixtures("added")
def test_what_builds_no_callback_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    job = small_job(tmp_path, "duration=5 steps", "idle={}")
    with refused():
        train(job)
    assert not (tmp_path / "runs").exists()


def test_a_run_is_shown_in_a_line(tmp_path: Path) -> None:
    outcome = train(small_job(tmp_path, "duration=1 steps"))
    assert outcome.score is not None
    loss = f"held-out loss {outcome.score.loss:.4f} ({outcome.score.extent})"
    assert repr(outcome) == f"Run({outcome.directory}: done, at step 1, {loss})"
    assert [row["kind"] for row in outcome.history] == ["train", "evaluation"]


def test_damaged_metrics_do_not_fail_the_end(tmp_path: Path) -> None:
    """A session that was stopped before its first evaluation looks for one in the metrics."""
    job = small_job(tmp_path, "duration=4 steps", "evaluation.every=last_step")
    run = train(job).directory
    (run / "metrics.jsonl").write_text("damaged\n")
    assert train(job).status == 0


def test_how_far_a_run_is_does_not_depend_on_the_pointer(tmp_path: Path) -> None:
    run = train(small_job(tmp_path, "duration=4 steps")).directory
    (run / "checkpoints" / "latest").write_text("nonsense")
    (run / "events.jsonl").unlink()
    assert run_status(str(run)) == "is at step 4"


class Failing(Callback):
    """Fails in one of its calls."""

    class Config(Config):
        """Kind of failure."""

        how: str
        """Error, secret or exit."""

    def __init__(self, config: Failing.Config, *, job: Job, components: Any, run: Any) -> None:
        self.how = config.how

    def after_step(self, loop: Loop, result: StepResult) -> None:
        if loop.position.step == 2:
            self.fail()

    def fail(self) -> None:
        if self.how == "exit":
            raise SystemExit(0)
        raise ValueError(f"the fault, {os.environ['HF_TOKEN']}")


@pytest.mark.parametrize("how", ["error", "exit"])
@pytest.mark.usefixtures("added")
def test_a_failed_run_keeps_its_traceback(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "not-to-be-seen-anywhere")
    job = small_job(tmp_path, f"failing.how={how}")
    with pytest.raises(ValueError if how == "error" else RunError) as caught:
        train(job)
    [run] = (tmp_path / "runs").iterdir()
    [fault] = events(run, "fault")
    log = (run / "logs" / "rank-0.log").read_text()
    for text in (fault["traceback"], log):
        assert ", in handle_pending\n" in text  # a frame of the loop
        assert f'File "{__file__}", line' in text and ", in fail" in text
        assert "not-to-be-seen-anywhere" not in text
    assert fault["step"] == 2
    assert log_of(caught.value) == str(run / "logs" / "rank-0.log")
    if how == "exit":
        assert "training was ended by SystemExit: 0 (" in fault["error"]
    else:
        assert log.endswith("\nValueError: the fault, ***\n")


def test_what_fails_before_the_run_is_open_is_in_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a source of documents that fails after hours."""
    import torch

    job = small_job(tmp_path)
    path = tmp_path / "runs" / "x"

    def build(*_: object) -> None:
        torch.nn.Linear(2, 2)(torch.zeros(3))

    monkeypatch.setattr("setpoint.train.run.build_components", build)
    with pytest.raises(RuntimeError) as caught:
        train(job, directory=path)
    log = (path / "logs" / "rank-0.log").read_text()
    assert ", in build\n" in log and ", in train\n" in log
    assert log_of(caught.value) == str(path / "logs" / "rank-0.log")
    monkeypatch.undo()
    assert train(job, directory=path).final_position.step == 30  # which goes on from there


def built(job: Job, directory: Path, notes: Progress) -> Run:
    """A run whose components are built, and of which nothing is written."""
    run = compare(job, directory, ())
    run.components = build_components(run.job)
    run.world, run.stop, run.shown, run.began = (
        run.components.world,
        StopRequest(),
        notes,
        time.time(),
    )
    return run


def test_each_session_has_a_number_of_its_own(tmp_path: Path) -> None:
    """By which services that only append tell what was trained twice; also where a save is lost."""
    numbers: list[int] = []
    for session in range(3):
        run = built(small_job(tmp_path, "checkpoint.every=last_step"), tmp_path / "run", Notes())
        with open_directory(run):
            resume(run)
            start_record(run)
            if session == 1:
                run.events.write("rollback", step=0)
            numbers.append(facts_of(run).session)
    assert numbers == [1, 3, 4]


def test_events_hold_no_differences_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = small_job(tmp_path, "duration=2 steps")
    code = {"user": {"root": "/r", "diff": "- old\n+ first\n"}, "setpoint": "the same repository"}
    monkeypatch.setattr("setpoint.track.environment._code", lambda _: code)
    run = train(job).directory
    code = {**code, "user": {"root": "/r", "diff": "- old\n+ second\n" * 1000}}
    train(small_job(tmp_path, "duration=4 steps", "schedule.horizon=2"), directory=run)
    (resume,) = [event for event in events(run) if event["event"] == "resume"]
    today = resume["environment"]["code"]["today"]
    assert today["user"]["root"] == "/r" and today["user"]["diff"]["characters"] == 15_000
    (kept,) = (run / "logs").glob("code-*.diff")
    assert kept.read_text() == "- old\n+ second\n" * 1000
    assert today["user"]["diff"]["sha256"].startswith(kept.stem.removeprefix("code-"))


def test_no_declared_secret_is_in_what_is_recorded_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts that look like no secret, by their values alone."""
    secrets = {
        "MY_TOKEN": "winter-of-1984",
        "UNSUSPICIOUS": "summer-of-1985",
        "file": "http://127.0.0.1:9/autumn",
    }
    monkeypatch.setenv("MY_TOKEN", secrets["MY_TOKEN"])
    monkeypatch.setenv("UNSUSPICIOUS", secrets["UNSUSPICIOUS"])
    monkeypatch.setenv("SHORT_KEY", "one")
    (tmp_path / "hook.txt").write_text(secrets["file"] + "\n")
    repository = tmp_path / "code"
    repository.mkdir()
    source = repository / "a.py"
    source.write_text("one = 1\n")
    for words in (["init"], ["add", "."], ["commit", "-m", "first"]):
        identity = ["-c", "user.name=T", "-c", "user.email=t@t"]
        subprocess.run(["git", *identity, *words], cwd=repository, check=True, capture_output=True)
    monkeypatch.chdir(repository)
    alerts = (
        f"tracking.alerts=[{{type=webhook, url='file:{tmp_path}/hook.txt', events=[stalled], "
        f"headers={{Authorization='env:UNSUSPICIOUS'}}}}]"
    )
    run = tmp_path / "run"
    for session, more in enumerate([[], ["schedule.horizon=2"]], start=1):
        source.write_text("".join(f"one = {session}, {text!r}\n" for text in secrets.values()))
        train(small_job(tmp_path, f"duration={2 * session} steps", alerts, *more), directory=run)
    kept = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    diffs = [path for path, data in kept.items() if re.search(rb"\+one = \d, '\*\*\*'", data)]
    assert {path.name.partition("-")[0] for path in diffs} >= {"code", "environment.json"}
    for text in secrets.values():
        assert [path for path, data in kept.items() if text.encode() in data] == []
