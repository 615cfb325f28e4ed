"""What a session writes down before it trains."""

from __future__ import annotations

import time
from pathlib import Path

from setpoint.config.record.record import CONFIG
from setpoint.resilience.signals import StopRequest
from setpoint.track.progress import Progress
from setpoint.train.build.components import build_components
from setpoint.train.config import Job
from setpoint.train.opening import compare
from setpoint.train.recording import facts_of, open_record
from setpoint.train.resume import resume
from setpoint.train.session import Run

from .small import events, small_job


class Notes(Progress):
    """Keeps notes."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def note(self, text: str) -> None:
        self.seen.append(text)


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
        with open_record(run):
            resume(run)
            if session == 1:
                run.events.write("rollback", step=0)
            numbers.append(facts_of(run).session)
    assert numbers == [1, 3, 4]


def test_a_new_run_writes_its_record_and_starts(tmp_path: Path) -> None:
    notes = Notes()
    run = built(small_job(tmp_path, "tracking.peak_flops=1e12"), tmp_path / "run", notes)
    assert not run.directory.exists()
    with open_record(run):
        resume(run)
        use = run.utilization
    (start,) = events(tmp_path / "run", "start")
    assert start["step"] == 0
    assert start["utilization"] == use.record()
    assert [group["name"] for group in start["groups"]] == ["decay", "no_decay"]
    assert (tmp_path / "run" / CONFIG).exists()
    assert (tmp_path / "run" / "environment.json").exists()
    assert not any(note.startswith("mfu will be null") for note in notes.seen)
