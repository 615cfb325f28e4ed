"""What a session writes down of the code that it ran."""

from __future__ import annotations

from pathlib import Path

import pytest

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
