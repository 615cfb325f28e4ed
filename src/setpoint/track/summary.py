"""The table at the end of a run: boxed on a terminal, plain text in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from .console import is_terminal

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
    """How much a cell says about the width of its column: a sentence among numbers says nothing."""
    return len(cell) if column == 0 or len(cell) <= LONGEST else 0
