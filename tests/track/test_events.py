"""The history of a run."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from setpoint.track.jsonl import EventLog, read_jsonl


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
