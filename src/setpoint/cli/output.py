"""Results as text or JSON, colour on a terminal, tables, notes and cautions."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

from setpoint.config import Caution, Problem

if TYPE_CHECKING:
    from setpoint.cli.options import Arguments, Command


def emit(
    arguments: Arguments,
    facts: object | Callable[[], object],
    text: str | Callable[[], str],
) -> None:
    """Print a result: as JSON with `--json`, as text otherwise.

    Arguments:
        facts: plain data, or a function that makes it.
        text: likewise a text or a function; the other of the two is not called.
    """
    if not arguments.has("--json"):
        print(text() if callable(text) else text)
        return
    import json

    print(json.dumps(facts() if callable(facts) else facts, indent=2))


def manual(command: Command) -> str:
    """The manual page of a command."""
    lines = [bold(f"{command.title} {command.usage}"), "", command.description.strip(), ""]
    rows: list[tuple[str, str]] = []
    for option in command.options:
        repeat = " May be repeated." if option.repeat else ""
        rows.append((" ".join(filter(None, (option.name, option.metavar))), option.help + repeat))
    lines += [bold("Options"), *_indented(rows)]
    if command.examples:
        lines += ["", bold("Examples"), *_indented(command.examples)]
    return "\n".join(lines)


def _indented(rows: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in rows) + 2
    return [f"  {name:<{width}}{text}" for name, text in rows]


def _colour(stream: TextIO) -> bool:
    if not stream.isatty():  # asked first, since a page asks for each of its words
        return False
    # https://no-color.org: set to anything but the empty text.
    return not (os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb")


def colours() -> bool:
    """Whether standard output shows them."""
    return _colour(sys.stdout)


def styled(text: str, code: str, stream: TextIO | None = None) -> str:
    """A text in a style, if the stream is a terminal.

    Arguments:
        code: the parameter of the terminal's "select graphic rendition" sequence (ECMA-48).
        stream: where it will be printed; standard output if None.
    """
    return f"\033[{code}m{text}\033[0m" if _colour(stream or sys.stdout) else text


def bold(text: str) -> str:
    """A heading."""
    return styled(text, "1")


def dim(text: str) -> str:
    """Something beside the point, such as an origin."""
    return styled(text, "2")


def wrapped(text: str, indent: str) -> str:
    """A paragraph, broken at the width of a terminal; one line elsewhere, for grep."""
    if not sys.stdout.isatty():
        return indent + text
    import shutil
    import textwrap

    width = max(40, shutil.get_terminal_size().columns)
    return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent)


def styles() -> tuple[Callable[[str], str], Callable[[str], str], Callable[[str, str], str]]:
    """`bold`, `dim` and `wrapped` for a long page, which asks once what standard output is."""
    if sys.stdout.isatty():
        return bold, dim, wrapped
    return str, str, lambda text, indent: indent + text


def table(rows: Sequence[Sequence[str]], headings: Sequence[str] | None = None) -> str:
    """Columns aligned by spaces.

    Returns:
        the lines; the last column is not padded.
    """
    every = [list(headings), *rows] if headings else list(rows)
    if not every:
        return ""
    widths = [max(len(row[column]) for row in every) for column in range(len(every[0]))]
    lines: list[str] = []
    for index, row in enumerate(every):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        line = "  ".join([*cells[:-1], row[-1]]).rstrip()
        lines.append(bold(line) if headings and index == 0 else line)
    return "\n".join(lines)


def print_notes(notes: Sequence[str]) -> None:
    """Print each note once, on standard error, so that what is printed for machines stays whole."""
    for note in dict.fromkeys(notes):
        print(f"{styled('note:', '1;33', sys.stderr)} {note}", file=sys.stderr)


def print_cautions(cautions: Iterable[Caution], *, silence: bool = True) -> None:
    """Print what is legal but suspicious, on standard error.

    Arguments:
        silence: whether to say how a caution is silenced.
    """
    for caution in cautions:
        text = caution.render() if silence else Problem.render(caution)
        print(f"{styled('caution:', '1;33', sys.stderr)} {text.lstrip()}", file=sys.stderr)
