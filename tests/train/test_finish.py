"""The table at the end says what the record says."""

import io
from pathlib import Path

import pytest

from setpoint.config import RunError, compose, resolve
from setpoint.resilience.signals import StopRequest
from setpoint.train import finish
from setpoint.train.config import Job
from setpoint.train.finish import print_summary
from setpoint.train.loop import Loop
from setpoint.train.run import Run, train
from setpoint.train.run_name import draw_seed

from ..report.page.test_content import data_of
from ..support.snapshots import refused
from .small import events, rows, small_job


def summary(outcome: Run) -> list[str]:
    stream = io.StringIO()
    print_summary(outcome, stream)
    return [" ".join(line.split()) for line in stream.getvalue().splitlines()]


def test_a_finished_run(tmp_path: Path) -> None:
    job = small_job(tmp_path, "duration=6 steps")
    outcome = train(job)
    lines = summary(outcome)
    assert lines[0] == f"small: {outcome.directory}"
    last = rows(outcome.directory)[-1]
    loss = f"held-out loss {last['held_out_loss']:.4f}"
    extent = f"({last['held_out_sequences']} of {last['held_out_total_sequences']} sequences)"
    assert {"state finished", "steps 6", f"{loss} {extent}"} < set(lines)
    assert f"tokens {6 * 64}" in lines


def test_named_data_sets_and_an_early_end(tmp_path: Path) -> None:
    """A model that learns nothing is not a better after the first evaluation."""
    web = "{name=web, sources=[{type=random, documents=9, length=90}]}"
    job = small_job(
        tmp_path, "optimizer.lr=1e-30", "schedule=constant", "evaluation.accuracy=true",
        f"evaluation.datasets=[{web}]", "evaluation.early_stopping.patience=1",
    )  # fmt: skip
    outcome = train(job)
    lines = summary(outcome)
    assert f"state finished early: {outcome.reason}" in lines
    assert outcome.reason is not None and "steps 6" in lines
    names = [" ".join(line.split(" ")[:2]) for line in lines[-4:]]
    assert names == ["held-out loss", "held-out accuracy", "web loss", "web accuracy"]
    web = outcome.scores["web"]
    assert lines[-2] == f"web loss {web.loss:.4f} ({web.extent})"
    again = summary(train(job))
    state = f"state finished early: {outcome.reason}"
    lines[lines.index(state)] = f"{state}; this session trained nothing"
    assert [line for line in lines if not line.startswith("tokens/s")] == again


def test_a_stop_after_a_step_names_the_option_to_leave_out(tmp_path: Path) -> None:
    run = train(small_job(tmp_path, "duration=2 steps"), until=1)
    assert (
        summary(run)[-1] == "saved at step 1; the same command or call without until resumes there"
    )


def test_a_run_of_a_drawn_seed_resumes_by_its_directory(tmp_path: Path) -> None:
    """The same command would draw another seed, and so begin another run."""
    draft = small_job(tmp_path, "duration=2 steps", "seed=null").evolve()
    draw_seed(draft)
    job = resolve(draft)
    outcome = train(job)
    outcome.status = 130
    command = f"saved at step 2; `setpoint train {outcome.directory}` resumes there"
    assert summary(outcome)[-1] == command
    outcome.job = compose(Job, str(outcome.directory)).resolve()
    assert summary(outcome)[-1] == "saved at step 2; the same command resumes there"


FLAGS = ("duration=2 steps", "evaluation=null", "tracking.report=true")


def test_what_cannot_be_written_is_said_and_fails_nothing(tmp_path: Path) -> None:
    job = small_job(tmp_path, *FLAGS)
    run = train(job).directory
    [found] = data_of((run / "report.html").read_text())["runs"]
    assert found["status"] == "finished" and found["curves"]["train.loss"]["count"] == 2
    (run / "report.html").unlink()
    (run / "report.html").mkdir()
    outcome = train(job, directory=run)
    assert outcome.status == 0
    assert "report.html cannot be written" in events(run, "report_failed")[0]["error"]


def test_a_run_that_fails_leaves_one_with_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(loop: Loop) -> None:
        raise RunError("the disk burns")

    monkeypatch.setattr(Loop, "run", fails)
    with refused(RunError):
        train(small_job(tmp_path, *FLAGS))
    [run] = (tmp_path / "runs").iterdir()
    [found] = data_of((run / "report.html").read_text())["runs"]
    assert found["status"] == "failed"
    assert found["events"][-1]["details"]["error"] == "the disk burns"


def test_a_process_that_is_told_to_stop_makes_no_large_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finish, "QUICK", -1)
    stop = StopRequest()
    stop.request()
    outcome = train(small_job(tmp_path, *FLAGS), stop=stop)
    assert outcome.status == 75 and not (outcome.directory / "report.html").exists()
    log = (outcome.directory / "logs/rank-0.log").read_text()
    assert "report.html is written at the end" in log
