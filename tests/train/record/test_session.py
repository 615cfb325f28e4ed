"""What a session does beside the loop: callbacks of sections that a package has added."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from setpoint.config import Config, SetpointError, field
from setpoint.config.schema.tree import add_section
from setpoint.train.callback import Callback
from setpoint.train.config import Job
from setpoint.train.record.outlook import standing
from setpoint.train.run import train
from setpoint.train.step.loop import Loop, StepResult

from ..small import small_job


class Watch(Callback):
    """Writes the loss of every so many updates to a file of its own."""

    class Config(Config):
        """How closely a run is watched."""

        every: int = field(default=2, ge=1)
        """Updates from one line to the next."""

    def __init__(self, config: Watch.Config, *, job: Job, parts: Any, run: Any) -> None:
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
    add_section(Job, "watch", Watch.Config)
    add_section(Job, "idle", NoCallback)
    yield
    for name in ("watch", "idle"):
        del Job.__setpoint__.fields[name], Job.__setpoint__.added[name]
        Job.__setpoint__.plan_made = None  # it knows the fields


@pytest.mark.usefixtures("added")
def test_an_added_section_is_a_callback(tmp_path: Path) -> None:
    job = small_job(tmp_path, "duration=5 steps", "watch.every=2")
    run = train(job).directory
    steps = [line.split()[0] for line in (run / "watch.txt").read_text().splitlines()]
    assert steps == ["2", "4"]
    assert train(job, run).ended.step == 5


@pytest.mark.usefixtures("added")
def test_what_builds_no_callback_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    job = small_job(tmp_path, "duration=5 steps", "idle={}")
    with pytest.raises(SetpointError, match=r"idle: an added section must build a .*Callback"):
        train(job)
    assert not (tmp_path / "runs").exists()


def test_an_outcome_is_shown_in_a_line(tmp_path: Path) -> None:
    outcome = train(small_job(tmp_path, "duration=1 steps"))
    assert outcome.score is not None
    loss = f"held-out loss {outcome.score.loss:.4f}"
    assert repr(outcome) == f"Outcome({outcome.directory}: done, at step 1, {loss})"
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
    assert standing(str(run)) == "is at step 4"
