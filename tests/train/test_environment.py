"""What a session writes down of the code that it ran."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from setpoint.train.run import train

from .small import events, small_job


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
        train(small_job(tmp_path, f"duration={2 * session} steps", alerts, *more), run)
    kept = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    diffs = [path for path, data in kept.items() if re.search(rb"\+one = \d, '\*\*\*'", data)]
    assert {path.name.partition("-")[0] for path in diffs} >= {"code", "environment.json"}
    for text in secrets.values():
        assert [path for path, data in kept.items() if text.encode() in data] == []
