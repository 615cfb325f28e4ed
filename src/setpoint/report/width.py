"""Makes a table of runs fit the width of a terminal: turned, or cut, whichever loses less."""

from __future__ import annotations

from collections.abc import Sequence

GAP = 2  # spaces between two columns
CUT = "..."
NAMED = 4  # columns left out that are named

Rows = list[list[str]]


def fitted(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> tuple[Rows, str]:
    """A table that is no wider than a terminal.

    Arguments:
        headings: of the columns; the first one names the runs.

    Returns:
        the rows with the headings as the first one, and what was left out, in words; the empty
        text if nothing was.
    """
    whole = [list(headings), *(list(row) for row in rows)]
    if width_of(whole) <= width:
        return whole, ""
    turned = [list(column) for column in zip(*whole, strict=True)]
    return (turned, "") if width_of(turned) <= width else _cut(whole, turned, width)


def width_of(rows: Sequence[Sequence[str]]) -> int:
    """How wide a table is."""
    widths = _widths(rows)
    return sum(widths) + GAP * (len(widths) - 1)


def _cut(whole: Rows, turned: Rows, width: int) -> tuple[Rows, str]:
    table, other = (whole, turned) if width_of(whole) <= width_of(turned) else (turned, whole)
    half = max(len(CUT) + 1, (width - GAP) // 2)
    short = [[_shortened(cell, half) for cell in row] for row in table]
    count = len(other)
    while count > 1 and width_of([row[:count] for row in short]) > width:
        count -= 1
    said: list[str] = []
    if count < len(other):
        names = [_shortened(row[0], half) for row in other[count:]]
        rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        said.append(f"without {', '.join(names[:NAMED])}{rest}")
    if any(row[:count] != full[:count] for row, full in zip(short, table, strict=True)):
        said.append("with long cells cut")
    note = f"shown {' and '.join(said)}, since the terminal is narrow; --csv and --json show all"
    return [row[:count] for row in short], note


def _shortened(cell: str, most: int) -> str:
    return cell if len(cell) <= most else cell[: most - len(CUT)] + CUT


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
