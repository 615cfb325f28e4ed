"""Tables of runs: sorted, for people, for spreadsheets and for machines."""

import csv
import io
import math

import pytest

from setpoint.config.record.record import ABSENT
from setpoint.report.table import Table
from setpoint.track.jsonl import plain_numbers

from ..support.snapshots import refused

ROWS = [["b", 1e-4, 2.0], ["a", 3e-4, math.nan], ["c", ABSENT, 1.23456789], ["d", None, None]]


def table() -> Table:
    return Table(["run", "optimizer.lr", "loss"], ROWS)


@pytest.mark.parametrize(
    ("name", "reverse", "order"),
    [("loss", False, "cbad"), ("loss", True, "bcad"), ("lr", False, "bacd"), ("run", True, "dcba")],
)
def test_rows_are_sorted(name: str, reverse: bool, order: str) -> None:
    found = table()
    found.sort(name, reverse)
    assert "".join(row[0] for row in found.rows) == order


def test_a_column_that_is_not_there() -> None:
    with refused():
        table().sort("los")


def test_cells_are_short_texts() -> None:
    assert table().cells() == [
        ["b", "0.0001", "2"], ["a", "0.0003", "nan"], ["c", "-", "1.23457"], ["d", "null", "null"],
    ]  # fmt: skip
    cells = Table(["x"], [[[1, 2]], [True], [12345678]]).cells()
    assert cells == [["[1, 2]"], ["true"], ["12345678"]]


def test_a_table_has_a_csv_form() -> None:
    found = Table(["run", "x, y"], [['a "b"', 0.1], ["c,d", ABSENT], ["e", [1]]])
    rows = list(csv.reader(io.StringIO(found.to_csv())))
    assert rows == [["run", "x, y"], ['a "b"', "0.1"], ["c,d", ""], ["e", "[1]"]]


def test_a_table_has_a_json_form() -> None:
    assert plain_numbers(table().to_json()) == [
        {"run": "b", "optimizer.lr": 1e-4, "loss": 2.0},
        {"run": "a", "optimizer.lr": 3e-4, "loss": "NaN"},
        {"run": "c", "loss": 1.23456789},
        {"run": "d", "optimizer.lr": None, "loss": None},
    ]
