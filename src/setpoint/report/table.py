"""A table of runs: sorted, and written for people, spreadsheets and machines."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

from setpoint.config import ABSENT, SetpointError, did_you_mean


class Table:
    """Rows of values under named columns.

    Arguments:
        rows: a value for each column: numbers, texts, plain data, None or `ABSENT`.
    """

    def __init__(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        self.columns = list(columns)
        self.rows = [list(row) for row in rows]

    def index(self, name: str) -> int:
        """The index of a column, which may be named by the end of its path alone.

        Raises:
            SetpointError: if there is no such column.
        """
        ends = [column for column in self.columns if column.endswith(f".{name}")]
        if name in self.columns or len(ends) == 1:
            return self.columns.index(name if name in self.columns else ends[0])
        meant = did_you_mean(name, self.columns, " ")
        raise SetpointError(
            f"the table has no column {name!r}.{meant} Columns: {', '.join(self.columns)}"
        )

    def add(self, name: str, values: Sequence[Any]) -> None:
        """Append a column."""
        self.columns.append(name)
        for row, value in zip(self.rows, values, strict=True):
            row.append(value)

    def drop(self, places: Collection[int]) -> None:
        """Take columns out."""
        kept = [at for at in range(len(self.columns)) if at not in places]
        self.columns = [self.columns[at] for at in kept]
        self.rows = [[row[at] for at in kept] for row in self.rows]

    def sort(self, name: str, reverse: bool = False) -> None:
        """Sort the rows; those without a number or text come last, either way.

        Raises:
            SetpointError: if there is no such column.
        """
        at = self.index(name)
        known = [row for row in self.rows if _is_known(row[at])]
        rest = [row for row in self.rows if not _is_known(row[at])]
        known.sort(key=lambda row: _order(row[at]), reverse=reverse)
        self.rows = [*known, *rest]

    def cells(self, text: Callable[[Any], str]) -> list[list[str]]:
        """The rows as texts for people.

        Returns:
            cells; numbers that are not whole have six digits.
        """
        return [[_cell(value, text) for value in row] for row in self.rows]

    def to_csv(self, text: Callable[[Any], str]) -> str:
        """The table as comma-separated values, by RFC 4180.

        Returns:
            lines that begin with the names; numbers at full precision.
        """
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(self.columns)
        for row in self.rows:
            writer.writerow([_exact(value, text) for value in row])
        return stream.getvalue()

    def to_json(self, plain: Callable[[Any], Any]) -> list[dict[str, Any]]:
        """The table for machines.

        Returns:
            a mapping for each row; what a run does not have is left out.
        """
        return [
            {
                name: _json(value, plain)
                for name, value in zip(self.columns, row, strict=True)
                if value is not ABSENT
            }
            for row in self.rows
        ]


def number_cell(value: float) -> str:
    """A number as a table shows it.

    Returns:
        six digits at most; whole numbers in full.
    """
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def _cell(value: Any, text: Callable[[Any], str]) -> str:
    if value is ABSENT or value is None:
        return "-" if value is ABSENT else "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return number_cell(value)
    return value if isinstance(value, str) else text(value)


def _exact(value: Any, text: Callable[[Any], str]) -> str:
    if value is ABSENT:
        return ""
    if isinstance(value, float):
        return repr(value)
    return _cell(value, text)


def _json(value: Any, plain: Callable[[Any], Any]) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return plain(value)


def _is_known(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isnan(value)
    return isinstance(value, bool | int | str)


def _order(value: Any) -> tuple[bool, float, str]:
    text = isinstance(value, str)
    return text, 0.0 if text else float(value), value if text else ""
