"""What a session writes down of the code that it ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from setpoint.config.record.record import CONFIG
from setpoint.track.events import EventLog
from setpoint.track.progress import Progress
from setpoint.track.run_directory import RunDirectory
from setpoint.train.build.components import build_components
from setpoint.train.build.utilization import utilization_of
from setpoint.train.record.environment import Beginning, keep_record
from setpoint.train.run import train

from ..small import events, small_job


def test_events_hold_no_differences_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = small_job(tmp_path, "duration=2 steps")
    code = {"user": {"root": "/r", "diff": "- old\n+ first\n"}, "setpoint": "the same repository"}
    monkeypatch.setattr("setpoint.track.environment._code", lambda _: code)
    run = train(job).directory
    code = {**code, "user": {"root": "/r", "diff": "- old\n+ second\n" * 1000}}
    train(small_job(tmp_path, "duration=4 steps", "schedule.horizon=2"), run)
    (resume,) = [event for event in events(run) if event["event"] == "resume"]
    today = resume["environment"]["code"]["today"]
    assert today["user"]["root"] == "/r" and today["user"]["diff"]["characters"] == 15_000
    (kept,) = (run / "logs").glob("code-*.diff")
    assert kept.read_text() == "- old\n+ second\n" * 1000
    assert today["user"]["diff"]["sha256"].startswith(kept.stem.removeprefix("code-"))


class Notes(Progress):
    """Keeps notes."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def note(self, text: str) -> None:
        self.seen.append(text)


def test_a_new_run_writes_its_record_and_starts(tmp_path: Path) -> None:
    job = small_job(tmp_path, "tracking.peak_flops=1e12")
    parts, notes = build_components(job), Notes()
    use = utilization_of(job, parts.model, parts.tokenizer.vocab_size, parts.device)
    with RunDirectory.create(tmp_path / "run") as run:
        log = EventLog(run.events)
        begun = Beginning(job, job, None, None, over=False, ended=None, use=use)
        keep_record(run, parts, log, notes, begun)
        log.close()
    (start,) = events(tmp_path / "run", "start")
    assert start["step"] == 0
    assert start["utilization"] == use.record()
    assert [group["name"] for group in start["groups"]] == ["decay", "no_decay"]
    assert (tmp_path / "run" / CONFIG).exists()
    assert (tmp_path / "run" / "environment.json").exists()
    assert not any(note.startswith("mfu will be null") for note in notes.seen)
