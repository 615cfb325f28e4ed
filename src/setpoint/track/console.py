"""Numbers, times and tables as people read them, on a terminal or in a pipe."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TextIO


def is_terminal(stream: TextIO) -> bool:
    """True if a stream is a terminal that can move its cursor.

    Arguments:
        stream: for instance standard output.

    Returns:
        False for files, pipes, closed streams and `TERM=dumb`.
    """
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # A closed stream.
        return False


def now() -> str:
    """The present time.

    Returns:
        UTC in ISO 8601, for instance `2026-11-22T16:05:09.123Z`.
    """
    return time_of(time.time())


def time_of(seconds: float) -> str:
    """A time in seconds since 1970 as `now` writes it."""
    return (
        datetime.fromtimestamp(seconds, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def short_count(count: float) -> str:
    """A count in three digits.

    Arguments:
        count: for instance tokens or parameters.

    Returns:
        for instance `950`, `16.1k`, `1.25M`.
    """
    if not math.isfinite(count):
        return str(count)
    for unit in ("", "k", "M", "G", "T"):
        if abs(count) < 999.5 or unit == "T":
            break
        count /= 1000
    if not unit:
        return f"{count:.0f}" if count == int(count) or abs(count) >= 100 else f"{count:.3g}"
    digits = 2 if abs(count) < 9.995 else 1 if abs(count) < 99.95 else 0
    return f"{count:.{digits}f}{unit}"


def short_time(seconds: float) -> str:
    """A length of time.

    Returns:
        for instance `0:42`, `1:05:09`, `3d 4:00:00`.
    """
    if not math.isfinite(seconds):
        return "?"
    minutes, second = divmod(round(max(0.0, seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    clock = f"{hour}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
    return f"{days}d {clock}" if days else clock


LONGEST = 24  # signs of a cell that is a number with its unit


def print_table(
    title: str,
    rows: Sequence[Sequence[str]],
    *,
    columns: Sequence[str] = (),
    stream: TextIO | None = None,
) -> None:
    """Print a table. rich is imported only on a terminal.

    Arguments:
        rows: cells of text; the first of a row is its label, the others are numbers as a rule.
        columns: headings; none if not given.
    """
    output: TextIO = sys.stdout if stream is None else stream
    if not is_terminal(output):
        print(plain_table(title, rows, columns=columns), file=output, flush=True)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", show_header=bool(columns))
    width = max((len(row) for row in rows), default=len(columns))
    for index in range(max(width, len(columns))):
        heading = columns[index] if index < len(columns) else ""
        table.add_column(heading, justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(file=output, highlight=False).print(table)


def plain_table(title: str, rows: Sequence[Sequence[str]], *, columns: Sequence[str] = ()) -> str:
    """A table in text, aligned by spaces.

    Arguments:
        columns: headings; none if not given.
    """
    lines = [*([columns] if columns else []), *rows]
    count = max((len(line) for line in lines), default=0)
    widths = [max(_counted(line[i], i) for line in lines if i < len(line)) for i in range(count)]
    result = [title]
    for line in lines:
        cells = [
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=False))
        ]
        result.append(("  " + "  ".join(cells)).rstrip())
    return "\n".join(result)


def _counted(cell: str, column: int) -> int:
    """Width that a cell asks of its column; 0 for a sentence among numbers."""
    return len(cell) if column == 0 or len(cell) <= LONGEST else 0
