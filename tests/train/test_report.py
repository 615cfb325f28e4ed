"""The report that a run leaves: of failed runs, too, and never a reason to fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from setpoint.config import RunError
from setpoint.resilience.signals import StopRequest
from setpoint.train import recording
from setpoint.train.loop import Loop
from setpoint.train.run import train

from ..report.page.test_content import data_of
from .small import events, small_job

FLAGS = ("duration=2 steps", "evaluation=null", "tracking.report=true")


def test_what_cannot_be_written_is_said_and_fails_nothing(tmp_path: Path) -> None:
    job = small_job(tmp_path, *FLAGS)
    run = train(job).directory
    [found] = data_of((run / "report.html").read_text())["runs"]
    assert found["status"] == "finished" and found["curves"]["train.loss"]["count"] == 2
    (run / "report.html").unlink()
    (run / "report.html").mkdir()
    outcome = train(job, run)
    assert outcome.status == 0
    assert "report.html cannot be written" in events(run, "report_failed")[0]["error"]


def test_a_run_that_fails_leaves_one_with_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(loop: Loop) -> None:
        raise RunError("the disk burns")

    monkeypatch.setattr(Loop, "run", fails)
    with pytest.raises(RunError, match="the disk burns"):
        train(small_job(tmp_path, *FLAGS))
    [run] = (tmp_path / "runs").iterdir()
    [found] = data_of((run / "report.html").read_text())["runs"]
    assert found["status"] == "failed"
    assert found["events"][-1]["details"]["error"] == "the disk burns"


def test_a_process_that_is_told_to_stop_makes_no_large_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "QUICK", -1)
    stop = StopRequest()
    stop.request()
    outcome = train(small_job(tmp_path, *FLAGS), stop=stop)
    assert outcome.status == 75 and not (outcome.directory / "report.html").exists()
    log = (outcome.directory / "logs/rank-0.log").read_text()
    assert "report.html waits for the end" in log
