"""Human-readable numbers, times and tables, for terminals and pipes."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TextIO


def is_terminal(stream: TextIO) -> bool:
    """True if a stream is an open terminal that can move its cursor: not with `TERM=dumb`."""
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # a closed stream
        return False


def now() -> str:
    """The current time as UTC in ISO 8601, for example `2026-11-22T16:05:09.123Z`."""
    return time_of(time.time())


def time_of(seconds: float) -> str:
    """Format seconds since 1970 as `now` does."""
    return (
        datetime.fromtimestamp(seconds, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def short_count(count: float) -> str:
    """Format a count with three digits, for example `950`, `16.1k`, `1.25M`."""
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
    """Format a length of time, for example `0:42`, `1:05:09`, `3d 4:00:00`."""
    if not math.isfinite(seconds):
        return "?"
    minutes, second = divmod(round(max(0.0, seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    clock = f"{hour}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
    return f"{days}d {clock}" if days else clock


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table with aligned columns."""
    count = max(map(len, rows), default=0)
    widths = [max(len(row[column]) for row in rows if column < len(row)) for column in range(count)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()
        for row in rows
    ]


def print_table(
    title: str,
    rows: Sequence[Sequence[str]],
    *,
    columns: Sequence[str] = (),
    stream: TextIO | None = None,
) -> None:
    """Print a table; rich is imported only on a terminal.

    Arguments:
        rows: cells of text; the first of each row is its label.
        columns: headings; none by default.
    """
    output: TextIO = sys.stdout if stream is None else stream
    if not is_terminal(output):
        lines = aligned([*([columns] if columns else []), *rows])
        print(title, *(f"  {line}".rstrip() for line in lines), sep="\n", file=output, flush=True)
        return
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    width = max(map(len, rows), default=len(columns))
    headings = [*columns, *[""] * (width - len(columns))]
    table = Table(
        *(Column(heading, overflow="fold") for heading in headings),
        title=title,
        title_justify="left",
        show_header=bool(columns),
    )
    for row in rows:
        table.add_row(*map(Text, row))
    Console(file=output, highlight=False).print(table)
