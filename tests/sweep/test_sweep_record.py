"""The record of a sweep: complete at every moment, kept by one process, and never half read."""

import json
from pathlib import Path

import pytest

from setpoint.checkpoint.places import run_of_point
from setpoint.config import SetpointError
from setpoint.config.record.record import record_files
from setpoint.report.goodput import FINISHED
from setpoint.sweep.points import DuplicatePoint
from setpoint.sweep.sweep_record import (
    WAITING,
    RunState,
    SweepRecord,
    SweepTask,
    read_record_of,
    run_state,
    write_point,
)

from ..support.snapshots import refused
from .sample import task_of


def test_the_record_says_what_came_of_each_point(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    tasks = [task_of(tmp_path, seed) for seed in (1, 2)]
    record = SweepRecord(folder, "tiny", [DuplicatePoint("seed=01", "seed=1", [], "seed=01")])
    tasks[0].status, tasks[0].seconds, tasks[0].exit_status = FINISHED, 1.5, 0
    tasks[0].metrics = {"train.loss": float("nan"), "step": 3}
    written = record.write(tasks, search={"best": None})
    record.close()
    assert json.loads((folder / "sweep.json").read_text()) == written
    first = written["points"][0]
    assert repr(tasks[1]) == f"SweepTask('seed=2', waiting, run='{tasks[1].run}')"
    assert first["name"] == "seed=1" and first["settings"] == {"seed": 1}
    assert first["metrics"] == {"train.loss": "NaN", "step": 3}
    assert written["duplicates"] == [{"name": "seed=01", "same_as": "seed=1", "differing": []}]
    assert [point["status"] for point in read_record_of(folder)] == ["finished", "waiting"]


def test_points_of_earlier_sweeps_stay_as_long_as_their_runs(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    tasks = [task_of(tmp_path, seed) for seed in (1, 2, 3)]
    tasks[0].status, tasks[0].seconds = FINISHED, 2.0
    tasks[1].run.mkdir(parents=True)
    record = SweepRecord(folder, "tiny", [])
    record.write(tasks)
    record.close()
    again = task_of(tmp_path, 1)
    again.status = FINISHED
    record = SweepRecord(folder, "tiny", [])
    record.recall([again])
    assert again.seconds == 2.0
    record.write([again])
    record.close()
    assert [point["name"] for point in read_record_of(folder)] == ["seed=1", "seed=2"]


def test_the_run_of_a_point_in_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point, run = tmp_path / "sweep/points/seed=1", tmp_path / "sweep/tiny-1"
    write_point(point, "seed=1", task_of(tmp_path, 1).job, "sweep/tiny-1")
    run.mkdir()
    for folder, word in ((tmp_path, "sweep/points/seed=1"), (point.parent, "seed=1"), (point, ".")):
        monkeypatch.chdir(folder)
        assert run_of_point(word).samefile(run)


def test_two_sweeps_in_one_folder(tmp_path: Path) -> None:
    record = SweepRecord(tmp_path / "sweep", "tiny", [])
    with pytest.raises(SetpointError, match=r"a sweep is already running here: .* --experiment "):
        SweepRecord(tmp_path / "sweep", "tiny", [])
    record.close()
    SweepRecord(tmp_path / "sweep", "tiny", []).close()


@pytest.mark.parametrize("name", ["points", "points/seed=1/logs"])
def test_points_that_are_links_to_other_places_are_refused(tmp_path: Path, name: str) -> None:
    """A run directory in the folder may be one, and so may the folder itself."""
    folder, away = tmp_path / "real", tmp_path / "away"
    (folder / name).parent.mkdir(parents=True)
    away.mkdir()
    (tmp_path / "sweep").symlink_to(folder)
    (folder / "run").symlink_to(away)
    (folder / name).symlink_to(away)
    with refused():
        SweepRecord(tmp_path / "sweep", "tiny", [])
    assert not (folder / ".sweep.lock").exists()
    (folder / name).unlink()
    SweepRecord(tmp_path / "sweep", "tiny", []).close()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "sweep").write_text("")
    with refused():
        SweepRecord(tmp_path / "sweep", "tiny", [])


@pytest.mark.parametrize(
    "text", ["", "[]", '{"schema": 9}', '{"schema": 1, "points": [{}], "earlier": []}']
)
def test_a_record_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "sweep.json").write_text(text)
    with refused():
        read_record_of(tmp_path)


# How far a run has come, read from what it left behind.


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
        ([SAVE], RunState(True, False, 5), "resume at step 5"),
        ([{**END, "step": 7, "status": 75}], RunState(True, False, 7), "resume at step 7"),
        ([SAVE, END], RunState(True, True, 10), "skip: finished"),
        ([END, {"event": "resume", "step": 5}], RunState(True, False, 10), "resume at step 10"),
        ([{"event": "save", "step": "x"}], RunState(True, False, 0), "start again"),
    ],
)
def test_the_state_of_a_run_is_read_from_its_events(
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
    with refused():
        task.read_state()
