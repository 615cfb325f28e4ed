"""Results as text or JSON, color on a terminal, tables, notes and cautions."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from setpoint.config import SetpointError

if TYPE_CHECKING:
    from setpoint.cli.options import Arguments, Command
    from setpoint.config import Caution


def emit(
    arguments: Arguments,
    facts: object | Callable[[], object],
    text: str | Callable[[], str],
    notes: Sequence[str] = (),
) -> None:
    """Print a result, as JSON with `--json`, otherwise as text with notes on standard error.

    Of `facts` and `text`, functions are called only if their result is printed.
    """
    if not arguments.has("--json"):
        print(text() if callable(text) else text, flush=True)
        print_notes(notes)
        return
    print(json_text(facts() if callable(facts) else facts))


def new_file(arguments: Arguments) -> str | None:
    """The file given by `--output`, which must not exist yet."""
    output = arguments.value("--output")
    if output is not None and os.path.exists(output):
        raise SetpointError(
            f"--output {output} already exists and would be overwritten; choose another "
            f"name, or remove it"
        )
    return output


def print_or_write(text: str, output: str | None) -> None:
    """Print a text, or write it to the file given by `--output`, and say so."""
    if output is None:
        print(text, end="")
        return
    from pathlib import Path

    from setpoint.files.atomic import write_text

    write_text(Path(output), text)
    print(f"{output} is written")


def json_text(value: Any, indent: str = "") -> str:
    """JSON with one item per line, except for lists of numbers and text, such as token ids."""
    import json

    items: list[str] = []
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}: {json_text(value[key], indent + '  ')}" for key in value]
    elif isinstance(value, list | tuple) and any(isinstance(v, dict | list | tuple) for v in value):
        items = [json_text(item, indent + "  ") for item in value]
    if not items:
        return json.dumps(value)
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    lines = f",\n{indent}  ".join(items)
    return f"{opening}\n{indent}  {lines}\n{indent}{closing}"


def manual(command: Command) -> str:
    """The manual page of a command."""
    rows = [(o.flag, o.help + " Repeatable." * o.repeat) for o in command.options]
    lines = [bold(f"{command.title} {command.usage}".rstrip()), "", command.description, ""]
    lines += [bold("Options"), *_indented(rows)]
    if command.examples:
        lines += ["", bold("Examples"), *_indented(command.examples)]
    return "\n".join(lines)


def _indented(rows: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in rows) + 2
    return [f"  {name:<{width}}{text}" for name, text in rows]


def colours(stream: TextIO | None = None) -> bool:
    """True if a stream, by default standard output, supports colors."""
    if not (stream or sys.stdout).isatty():  # first, since pages call this for every word
        return False
    # https://no-color.org: set to any nonempty text.
    return not (os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb")


def styled(text: str, code: str, stream: TextIO | None = None) -> str:
    """Style a text if the stream, by default standard output, is a terminal.

    The code is the parameter of "select graphic rendition" (ECMA-48).
    """
    return f"\033[{code}m{text}\033[0m" if colours(stream) else text


def bold(text: str) -> str:
    """A heading."""
    return styled(text, "1")


def dim(text: str) -> str:
    """Dim secondary text, such as an origin."""
    return styled(text, "2")


def wrapped(text: str, indent: str) -> str:
    """Wrap a paragraph at the width of a terminal; elsewhere keep one line, for grep."""
    if not sys.stdout.isatty():
        return indent + text
    import shutil
    import textwrap

    width = max(40, shutil.get_terminal_size().columns)
    return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent)


def styles() -> tuple[Callable[[str], str], Callable[[str], str], Callable[[str, str], str]]:
    """`bold`, `dim` and `wrapped` for a long page, which check standard output only once."""
    if sys.stdout.isatty():
        return bold, dim, wrapped
    return str, str, lambda text, indent: indent + text


def hidden(rows: Sequence[object], most: int | None) -> list[str]:
    """A line about the rows that are not printed; None if there is no limit."""
    count = 0 if most is None else len(rows) - most
    return [f"and {count:,} more; --all prints them"] if count > 0 else []


def table(rows: Sequence[Sequence[str]], headings: Sequence[str] = ()) -> str:
    """Align columns with spaces; on a narrow terminal, rich folds the cells."""
    from setpoint.track.console import aligned  # not needed for --help

    lines = aligned([headings, *rows] if headings else rows)
    if sys.stdout.isatty():
        import shutil

        width = shutil.get_terminal_size().columns
        if max(map(len, lines), default=0) > width:
            return _folded(rows, headings, width)
        if headings:
            lines[0] = bold(lines[0])
    return "\n".join(lines)


def _folded(rows: Sequence[Sequence[str]], headings: Sequence[str], width: int) -> str:
    """Render a table with multi-line cells; transposed if it has more columns than rows."""
    from io import StringIO

    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    if len(headings) > len(rows) + 1:
        headings, *rows = zip(headings, *rows, strict=True)
    columns = (Column(name, overflow="fold") for name in headings or [""] * len(rows[0]))
    grid = Table(*columns, box=None, padding=(0, 2, 0, 0), show_header=bool(headings))
    for row in rows:
        grid.add_row(*map(Text, row))
    text = StringIO()
    Console(file=text, width=width, force_terminal=colours(), highlight=False).print(grid)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def print_notes(notes: Sequence[str]) -> None:
    """Print each note once, to standard error, so that standard output stays machine-readable."""
    for note in dict.fromkeys(notes):
        print(f"{styled('note:', '1;33', sys.stderr)} {note}", file=sys.stderr)


def print_cautions(cautions: Iterable[Caution], *, silence: bool = True) -> None:
    """Print cautions to standard error, by default with the way to silence each."""
    from setpoint.config import Problem

    for caution in cautions:
        text = caution.render() if silence else Problem.render(caution)
        print(f"{styled('caution:', '1;33', sys.stderr)} {text.lstrip()}", file=sys.stderr)
