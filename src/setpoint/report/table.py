"""A sortable table of runs, as text, CSV or JSON."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Collection, Sequence
from typing import Any

from setpoint.config import ABSENT, SetpointError, did_you_mean
from setpoint.config.words.text import in_full


class Table:
    """Rows of values under named columns: numbers, text, plain data, None or `ABSENT`."""

    def __init__(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        self.columns = list(columns)
        self.rows = [list(row) for row in rows]

    def index(self, name: str) -> int:
        """Index of a column, given by its path or the end of its path.

        Raises:
            SetpointError: there is no such column.
        """
        ends = [column for column in self.columns if column.endswith(f".{name}")]
        if name in self.columns or len(ends) == 1:
            return self.columns.index(name if name in self.columns else ends[0])
        hint = did_you_mean(name, self.columns, " ")
        raise SetpointError(
            f"the table has no column {name!r}.{hint} Columns: {', '.join(self.columns)}"
        )

    def add(self, name: str, values: Sequence[Any]) -> None:
        """Append a column."""
        self.columns.append(name)
        for row, value in zip(self.rows, values, strict=True):
            row.append(value)

    def drop(self, places: Collection[int]) -> None:
        """Remove columns."""
        kept = [place for place in range(len(self.columns)) if place not in places]
        self.columns = [self.columns[place] for place in kept]
        self.rows = [[row[place] for place in kept] for row in self.rows]

    def sort(self, name: str, reverse: bool = False) -> None:
        """Sort the rows; those without a number or text always come last.

        Raises:
            SetpointError: there is no such column.
        """
        place = self.index(name)
        known = [row for row in self.rows if _is_known(row[place])]
        unknown = [row for row in self.rows if not _is_known(row[place])]
        known.sort(key=lambda row: _order(row[place]), reverse=reverse)
        self.rows = [*known, *unknown]

    def cells(self) -> list[list[str]]:
        """The rows as human-readable text; floats have six digits."""
        return [[_cell(value) for value in row] for row in self.rows]

    def to_csv(self) -> str:
        """The table as CSV (RFC 4180), with floats at full precision."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(self.columns)
        for row in self.rows:
            writer.writerow(
                "" if value is ABSENT else repr(value) if isinstance(value, float) else _cell(value)
                for value in row
            )
        return stream.getvalue()

    def to_json(self) -> list[dict[str, Any]]:
        """One mapping per row, without absent values."""
        return [
            {
                name: value
                for name, value in zip(self.columns, row, strict=True)
                if value is not ABSENT
            }
            for row in self.rows
        ]


def number_cell(value: float) -> str:
    """Format a number with at most six digits; an int in full."""
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def _cell(value: Any) -> str:
    if value is ABSENT:
        return "-"
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return " ".join(value)  # tags
    if isinstance(value, float):
        return number_cell(value)
    return value if isinstance(value, str) else in_full(value)


def _is_known(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isnan(value)
    return isinstance(value, bool | int | str)


def _order(value: Any) -> tuple[bool, float, str]:
    text = isinstance(value, str)
    return text, 0.0 if text else float(value), value if text else ""
