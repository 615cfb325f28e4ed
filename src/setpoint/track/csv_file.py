"""Metrics as CSV, one file per kind of row."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from setpoint.config import RunError
from setpoint.files.atomic import not_linked, write_text

from .trackers import Tracker

if TYPE_CHECKING:
    from .config import Csv
    from .run_directory import RunDirectory


class CsvTracker(Tracker):
    """Appends rows to `<kind>.csv`; a new metric adds a column.

    Rows after a rollback are dropped. Lists become columns `name.0`, `name.1`.
    """

    synchronous = True

    def __init__(self, config: Csv, *, run_directory: RunDirectory) -> None:
        self.folder = run_directory.logs
        self._files: dict[str, TextIO] = {}
        self._columns: dict[str, list[str]] = {}

    def open(self, step: int, state: Mapping[str, Any], note: Callable[[str], None]) -> None:
        """Drop the rows of later steps."""
        self.rewind(step, state, note)

    def rewind(self, step: int, state: Mapping[str, Any], note: Callable[[str], None]) -> None:
        """Drop the rows of later steps."""
        self.close()
        for path in sorted(self.folder.glob("*.csv")):
            columns, rows = _read(path)
            if "step" in columns:
                column = columns.index("step")
                self._replace(path, columns, [row for row in rows if int(row[column]) <= step])

    def write(self, row: dict[str, Any]) -> None:
        """Append a row.

        Raises:
            RunError: the row cannot be written.
        """
        cells = _cells(row)
        kind = str(row.get("kind", "train"))
        path = self.folder / f"{kind}.csv"
        try:
            columns = self._opened(kind, path)
            if new := [name for name in cells if name not in columns]:
                self._widen(kind, path, [*columns, *new])
            file = self._files[kind]
            csv.writer(file, lineterminator="\n").writerow(
                [cells.get(name) for name in self._columns[kind]]
            )
            file.flush()
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error.strerror}") from error

    def flush(self) -> None:
        """Flush the rows to disk."""
        for kind, file in self._files.items():
            try:
                os.fsync(file.fileno())
            except OSError as error:
                path = self.folder / f"{kind}.csv"
                raise RunError(f"{path} cannot be written: {error.strerror}") from error

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()
        self._columns.clear()

    def _opened(self, kind: str, path: Path) -> list[str]:
        if kind not in self._files:
            columns, rows = _read(path) if path.exists() else ([], [])
            if path.exists():
                self._replace(path, columns, rows)  # without a torn line, as after a power cut
            self._columns[kind] = columns
            self._files[kind] = _appended(path)
        return self._columns[kind]

    def _widen(self, kind: str, path: Path, columns: list[str]) -> None:
        self._files.pop(kind).close()
        _, rows = _read(path)
        self._replace(path, columns, rows)
        self._columns[kind] = columns
        self._files[kind] = _appended(path)

    def _replace(self, path: Path, columns: list[str], rows: list[list[str]]) -> None:
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        if columns:
            writer.writerow(columns)
        writer.writerows([*row, *[""] * (len(columns) - len(row))] for row in rows)
        write_text(path, text.getvalue())


def _read(path: Path) -> tuple[list[str], list[list[str]]]:
    """The columns and the complete rows of a file."""
    content = path.read_bytes().decode("utf-8", "replace")
    lines = content[: content.rfind("\n") + 1]
    columns, *rows = [*csv.reader(io.StringIO(lines, newline=""))] or [[]]
    return columns, rows


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, list | tuple):
            cells |= {f"{name}.{index}": item for index, item in enumerate(value)}
        elif name != "kind":
            cells[name] = value
    return cells


def _appended(path: Path) -> TextIO:
    return open(path, "a", newline="", encoding="utf-8", opener=not_linked)
