"""Runs side by side: only what differs, and metrics that may be missing."""

import json
import math
from pathlib import Path

import pytest

from setpoint.config.record.record import ABSENT, leaf_table
from setpoint.report.table import Table
from setpoint.sweep.comparison import (
    ComparedRun,
    average,
    comparison,
    differing,
    entries,
    groups_over,
    read_metrics,
)
from setpoint.sweep.run_metrics import RunMetrics
from setpoint.sweep.sweep_record import SweepRecord

from ..support.snapshots import compare_message, refused
from .sample import task_of
from .test_sweep_record import END, leave


def entry(tmp_path: Path, seed: int, *rows: dict[str, object]) -> ComparedRun:
    task = task_of(tmp_path, seed)
    found = ComparedRun(task.name, str(task.run), task.run)
    found.values = leaf_table(task.job)
    found.metrics = RunMetrics(list(rows))
    return found


def test_only_what_differs_is_shown(tmp_path: Path) -> None:
    row = {"kind": "evaluation", "step": 3, "held_out_loss": 2.5}
    table = comparison([entry(tmp_path, 1, row), entry(tmp_path, 2)], [])
    assert table.columns[:2] == ["run", "seed"]
    assert table.rows == [["seed=1", 1, 3, 2.5, 2.5], ["seed=2", 2, ABSENT, ABSENT, ABSENT]]


def mean(table: Table, over: str, notes: list[str]) -> Table:
    return average(table, groups_over(table, over, ["seed"]), notes)


def test_the_mean_and_deviation_over_seeds(tmp_path: Path) -> None:
    losses = {1: 2.0, 2: 2.5, 3: 3.6}
    runs = [
        entry(tmp_path, seed, {"kind": "evaluation", "step": 3, "held_out_loss": loss})
        for seed, loss in losses.items()
    ]
    loss = "evaluation.held_out_loss"
    notes: list[str] = []
    table = mean(comparison(runs, [loss]), "seed", notes)
    assert table.columns == ["runs", loss, f"{loss}.std"]
    ((count, loss_mean, std),) = table.rows
    assert (count, loss_mean) == (3, pytest.approx(2.7))
    assert std == pytest.approx((1.34 / 2) ** 0.5)
    diverged = entry(tmp_path, 4, {"kind": "evaluation", "step": 3, "held_out_loss": math.nan})
    ((count, *values),) = mean(comparison([*runs, diverged], [loss]), "seed", notes).rows
    assert count == 4 and all(map(math.isnan, values))
    runs.append(entry(tmp_path, 4))
    assert mean(comparison(runs, [loss]), "seed", notes).rows[0][1:] == [loss_mean, std]
    assert notes == [f"{loss}: not recorded by seed=4, so the mean is of 3 runs"]
    for over in ("sed", "run", "step", loss):
        with refused():
            mean(comparison(runs, []), over, [])


def test_derived_values_and_places_are_left_out(tmp_path: Path) -> None:
    from setpoint.config.composition import compose
    from setpoint.train.config import Job

    tables = [
        leaf_table(
            compose(
                Job, flags=[f"model.dim={dim}", "model.heads=2", f"name=n{dim}", *more]
            ).resolve()
        )
        for dim, more in ((64, ["optimizer.lr=1"]), (128, ["evaluation=null"]))
    ]
    found = differing(tables)
    names = [".".join(path) for path in found]
    assert "model.dim" in names and "optimizer.lr" in names
    assert not {"model.ffn_dim", "name"} & set(names)
    assert found["evaluation", "every"][1] is ABSENT
    assert differing(tables[:1]) == {}


def test_a_folder_of_a_sweep_stands_for_its_points(tmp_path: Path) -> None:
    tasks = [task_of(tmp_path, seed) for seed in (1, 2)]
    leave(tasks[0], END)
    record = SweepRecord(tmp_path / "sweep", "tiny", [])
    record.write(tasks)
    record.close()
    notes: list[str] = []
    found = entries([str(tmp_path / "sweep")], notes)
    assert [each.label for each in found] == ["seed=1"]
    assert len(notes) == 1 and notes[0].startswith("seed=2: not started yet (")
    assert [each.label for each in entries([str(tmp_path / "sweep" / "sweep.json")], [])] == [
        "seed=1"
    ]
    # As the shell expands sweep/*, which includes the folder of the points.
    words = [
        str(tasks[0].run),
        *(str(tmp_path / "sweep" / name) for name in ("points", "sweep.json")),
    ]
    assert [each.label for each in entries(words, [])] == ["seed=1"]
    # Moved with all that is in it.
    (tmp_path / "sweep").rename(tmp_path / "moved")
    assert [each.label for each in entries([str(tmp_path / "moved")], [])] == ["seed=1"]


def test_metrics_that_are_missing_empty_or_damaged_are_named(tmp_path: Path) -> None:
    notes: list[str] = []
    for seed, text in ((1, None), (2, ""), (3, "nonsense\n"), (4, json.dumps(["row"]) + "\n")):
        task = task_of(tmp_path, seed)
        leave(task)
        path = task.run / "metrics.jsonl"
        path.unlink() if text is None else path.write_text(text)
        read_metrics(ComparedRun(task.name, str(task.run), task.run), notes)
    compare_message("\n".join(notes))
