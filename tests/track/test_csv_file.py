"""CSV files of metrics: read by Python's own reader."""

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from setpoint.config import resolve
from setpoint.track.config import Csv
from setpoint.track.csv_file import CsvTracker


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return [*csv.DictReader(file)]


def train(step: int, **more: Any) -> dict[str, Any]:
    return {"kind": "train", "step": step, "loss": 1 / step, **more}


def session(folder: Path, step: int, *rows: dict[str, Any]) -> None:
    run: Any = SimpleNamespace(logs=folder)
    tracker = CsvTracker(resolve(Csv()), run_directory=run)
    tracker.open(step, {}, lambda _: None)
    for row in rows:
        tracker.write(row)
    tracker.flush()
    tracker.close()


def test_rows_are_read_back_exactly_and_by_kind(tmp_path: Path) -> None:
    note = 'a "quoted", text\nof two lines'
    evaluation = {"kind": "evaluation", "step": 2, "held_out_loss": 0.1, "note": note}
    session(tmp_path, 0, train(1, lr=None), train(2, lr=0.5), evaluation)
    rows = read(tmp_path / "train.csv")
    assert [(row["step"], float(row["loss"]), row["lr"]) for row in rows] == [
        ("1", 1.0, ""),
        ("2", 0.5, "0.5"),
    ]
    assert read(tmp_path / "evaluation.csv") == [
        {"step": "2", "held_out_loss": "0.1", "note": note}
    ]


def test_names_that_come_later_are_columns_of_all_rows(tmp_path: Path) -> None:
    session(tmp_path, 0, train(1), train(2, expert_load=[0.25, 0.75]), train(3))
    rows = read(tmp_path / "train.csv")
    assert [row["expert_load.1"] for row in rows] == ["", "0.75", ""]
    assert [row["step"] for row in rows] == ["1", "2", "3"]


def test_a_session_goes_on_where_the_run_is(tmp_path: Path) -> None:
    session(tmp_path, 0, *map(train, range(1, 6)))
    with (tmp_path / "train.csv").open("a") as file:
        file.write("6,0.1")  # torn by a power cut
    session(tmp_path, 3, train(4), train(5, more=1))
    rows = read(tmp_path / "train.csv")
    assert [row["step"] for row in rows] == ["1", "2", "3", "4", "5"]
    assert rows[-1]["more"] == "1"
