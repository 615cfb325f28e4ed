"""How far a run has come, read from what it left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from setpoint.config import SetpointError
from setpoint.config.record.record import record_files
from setpoint.report.goodput import FINISHED
from setpoint.sweep.sweep_record import WAITING, RunState, SweepTask, run_state

from .sample import task_of


def leave(task: SweepTask, *events: dict[str, object]) -> None:
    """Write what a run leaves behind."""
    task.run.mkdir(parents=True, exist_ok=True)
    for name, text in record_files(task.job).items():
        (task.run / name).write_text(text)
    text = "".join(json.dumps(event) + "\n" for event in events)
    (task.run / "events.jsonl").write_text(text)
    row = {"kind": "train", "step": 10, "loss": float(len(events))}
    (task.run / "metrics.jsonl").write_text(json.dumps(row) + "\n")


SAVE = {"event": "save", "step": 5}
END = {"event": "end", "step": 10, "status": 0}


@pytest.mark.parametrize(
    ("events", "state", "plan"),
    [
        ([], RunState(True, False, 0), "start again"),
        ([{"event": "start", "step": 0}], RunState(True, False, 0), "start again"),
        ([SAVE], RunState(True, False, 5), "resume at step 5"),
        (
            [SAVE, {"event": "end", "step": 7, "status": 75}],
            RunState(True, False, 7),
            "resume at step 7",
        ),
        ([SAVE, END], RunState(True, True, 10), "skip: finished"),
        (
            [SAVE, END, {"event": "resume", "step": 5}],
            RunState(True, False, 10),
            "resume at step 10",
        ),
        ([{"event": "save", "step": "x"}], RunState(True, False, 0), "start again"),
    ],
)
def test_states(
    tmp_path: Path, events: list[dict[str, object]], state: RunState, plan: str
) -> None:
    task = task_of(tmp_path, 1)
    assert task.plan() == "start"
    leave(task, *events)
    task.read_state()
    assert task.state == state
    assert task.plan() == plan
    assert task.status == (FINISHED if state.finished else WAITING)
    assert bool(task.metrics) == state.finished


def test_a_longer_run_is_not_finished(tmp_path: Path) -> None:
    leave(task_of(tmp_path, 1), END)
    longer = task_of(tmp_path, 1, duration="20 steps")
    # With a longer schedule it learns something else, and is another run.
    assert longer.run != task_of(tmp_path, 1).run
    leave(longer, END)
    recorded = json.loads((longer.run / "config.json").read_text())
    origins = json.loads((longer.run / "origins.json").read_text())
    recorded["duration"] = origins["duration"]["value"] = "10 steps"
    (longer.run / "config.json").write_text(json.dumps(recorded))
    (longer.run / "origins.json").write_text(json.dumps(origins))
    assert run_state(longer.run, longer.job) == RunState(True, False, 10)


def test_what_cannot_be_gone_on_with(tmp_path: Path) -> None:
    task = task_of(tmp_path, 1)
    leave(task, END)
    (task.run / "origins.json").write_text("[1]")
    with pytest.raises(SetpointError, match=r"origins.json"):
        task.read_state()


def test_metrics_that_are_damaged_are_named(tmp_path: Path) -> None:
    task = task_of(tmp_path, 1)
    leave(task, END)
    (task.run / "metrics.jsonl").write_text("nonsense\n")
    task.read_state()
    assert task.status == FINISHED and "metrics.jsonl:1 is not a row" in task.reason
