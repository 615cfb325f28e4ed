"""Tables that do not fit a terminal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from setpoint.report.width import fitted, width_of

HEADINGS = ["run", "lr", "loss"]
ROWS = [["lr=1e-3", "0.001", "2.5"], ["lr=1e-2", "0.01", "2.25"]]


def test_what_fits_stays_as_it_is() -> None:
    assert width_of([HEADINGS, *ROWS]) == 7 + 2 + 5 + 2 + 4
    assert fitted(HEADINGS, ROWS, 20) == ([HEADINGS, *ROWS], "")


def test_many_columns_are_turned_into_rows() -> None:
    headings = ["run", *(f"field{index}" for index in range(9))]
    rows = [["a", *"123456789"], ["b", *"987654321"]]
    shown, note = fitted(headings, rows, 20)
    assert note == "" and shown[0] == ["run", "a", "b"] and shown[-1] == ["field8", "9", "1"]


def test_what_does_not_fit_either_way_is_cut_and_said() -> None:
    headings = ["run", *(f"field{index}" for index in range(9))]
    rows = [[f"run{index}", *("x" * 9)] for index in range(9)]
    shown, note = fitted(headings, rows, 30)
    assert shown[0] == ["run", "run0", "run1", "run2", "run3"]
    assert note == (
        "shown without run4, run5, run6, run7 and 1 more, since the terminal is narrow; "
        "--csv and --json show all"
    )
    shown, note = fitted(["run", "paths"], [["a", "x" * 50]], 20)
    assert shown == [["run", "paths"], ["a", "xxxxxx..."]] and "with long cells cut" in note


CELL = st.text("abc", min_size=1, max_size=30)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(10, 90), st.data())
def test_the_table_is_never_wider(
    columns: int, count: int, width: int, data: st.DataObject
) -> None:
    row = st.lists(CELL, min_size=columns, max_size=columns)
    rows = data.draw(st.lists(row, min_size=count, max_size=count))
    shown, note = fitted(data.draw(row), rows, width)
    assert width_of(shown) <= width
    assert note or sorted(map(len, (shown, shown[0]))) == sorted((count + 1, columns))
