"""What a session writes down before it trains."""

from __future__ import annotations

from pathlib import Path

from setpoint.config.record.record import CONFIG
from setpoint.resilience.signals import StopRequest
from setpoint.track.progress import Progress
from setpoint.train.build.components import build_components
from setpoint.train.record.refuse import refuse
from setpoint.train.record.session import open_run, resume

from ..small import events, small_job


class Notes(Progress):
    """Keeps notes."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def note(self, text: str) -> None:
        self.seen.append(text)


def test_a_new_run_writes_its_record_and_starts(tmp_path: Path) -> None:
    plan = refuse(small_job(tmp_path, "tracking.peak_flops=1e12"), tmp_path / "run", ())
    parts, notes = build_components(plan.job), Notes()
    assert not plan.path.exists()
    with open_run(plan, parts, StopRequest(), notes) as run:
        resume(run)
        use = run.utilization
    (start,) = events(tmp_path / "run", "start")
    assert start["step"] == 0
    assert start["utilization"] == use.record()
    assert [group["name"] for group in start["groups"]] == ["decay", "no_decay"]
    assert (tmp_path / "run" / CONFIG).exists()
    assert (tmp_path / "run" / "environment.json").exists()
    assert not any(note.startswith("mfu will be null") for note in notes.seen)
