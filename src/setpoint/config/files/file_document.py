"""A file that has been read: its data, the position of each key, and errors with positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast

from ..words.errors import SetpointError
from ..words.plain_data import MAX_BITS, MAX_DEPTH, TOO_DEEP, TOO_MANY_DIGITS, children

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeGuard

    from ..words.errors import Problem
    from ..words.names import Path


Format = Literal["toml", "yaml", "json"]
FORMATS: dict[str, Format] = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".json": "json"}
"""Format of a file by its suffix.

A further format needs its suffix here, a limit below, a reader in `read.parse`, a writer in
`write.WRITERS`, a form of overrides in `draft/hints.py`, and a place in the commands `show`
(--format), `migrate` (rewriting) and `--stdin-format`.
"""
HEADER = "setpoint"
"""The key of a file or record under which its schema is."""
MIB = 1024 * 1024
# Within these limits the largest file of each format takes at most 20 s of CPU time and 1 GiB. JSON
# has the fastest reader and is the format of records.
MAX_BYTES: dict[Format, int] = {"toml": MIB, "yaml": MIB // 4, "json": 8 * MIB}


def names_file(text: str) -> bool:
    """True if a text ends like the name of a configuration file."""
    return text.lower().endswith(tuple(FORMATS))


def without_suffix(text: str) -> str:
    """The last part of a path or preset, without a configuration-file suffix."""
    name = text.rstrip("/").rpartition("/")[2]
    return name.rpartition(".")[0] if names_file(name) else name


def is_mapping(value: object) -> TypeGuard[dict[str, object]]:
    """True if a value made by a reader is a mapping."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[object]]:
    """True if a value made by a reader is a list."""
    return isinstance(value, list)


class FilePosition:
    """The offset of a key or list item, from 0, and the positions inside its value."""

    __slots__ = ("children", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.children: dict[str | int, FilePosition] = {}

    def add(self, key: str | int, offset: int) -> FilePosition:
        """Add the position of a child; a known child keeps its first offset."""
        child = self.children.get(key)
        if child is None:
            child = self.children[key] = FilePosition(offset)
        return child


class FileDocument:
    """The data of one file, with the position of every key.

    Arguments:
        data: the top-level mapping, of plain dicts, lists and scalars.
        text: the whole text, without a byte order mark.
        scan: locates the keys in the text; called once, when a position is first requested.
    """

    __slots__ = ("_lines", "_places", "_scan", "data", "format", "name", "text")
    # Problems and notes of a converted file.
    problems: Sequence[Problem] = ()
    notes: Sequence[str] = ()

    def __init__(
        self,
        name: str,
        format: Format,
        data: dict[str, object],
        text: str,
        scan: Callable[[], FilePosition],
    ) -> None:
        self.name = name
        self.format: Format = format
        self.data = data
        self.text = text
        self._scan = scan
        self._places: FilePosition | None = None
        self._lines: list[int] = []

    def locate(self, path: Path) -> tuple[int, int] | None:
        """The position of a value's key, or of an item of a list.

        Returns:
            line and column in characters, both counted from 1; for a path deeper than the file, the
            position of the nearest ancestor; None if the first key does not exist.
        """
        if self._places is None:
            self._places = self._scan()
        place = self._places
        for key in path:
            child = place.children.get(key)
            if child is None:
                break
            place = child
        return None if place is self._places else self._position(place.offset)

    def where(self, path: Path) -> str:
        """The position of a value's key, `file:line:column`; only the file if there is none."""
        place = self.locate(path)
        return f"{self.name}:{place[0]}:{place[1]}" if place else self.name

    def check(self, refused: Mapping[str, str], value: object, path: Path = ()) -> None:
        """Refuse excessive nesting, and values of the named classes, each with its message."""
        message = refused.get(type(value).__name__)
        if isinstance(value, int) and value.bit_length() > MAX_BITS:  # in hexadecimal digits
            message = f"the number {TOO_MANY_DIGITS}"
        if len(path) >= MAX_DEPTH and (is_mapping(value) or is_list(value)):
            message = TOO_DEEP
        if message is not None:
            raise FileError(self.name, *(self.locate(path) or (1, 1)), message)
        for key, item in children(cast("object", value)):
            self.check(refused, item, (*path, key))

    def _position(self, offset: int) -> tuple[int, int]:
        from bisect import bisect_right

        if not self._lines:  # the offset of each line
            start = 0
            while start >= 0:
                self._lines.append(start)
                start = self.text.find("\n", start) + 1 or -1
        line = bisect_right(self._lines, offset)
        return line, offset - self._lines[line - 1] + 1


class FileError(SetpointError):
    """A file that cannot be read, with line and column from 1, or None for the whole file.

    Arguments:
        advice: an alternative that only files of Setpoint have.
    """

    def __init__(
        self, name: str, line: int | None, column: int | None, message: str, advice: str = ""
    ) -> None:
        place = name if line is None else f"{name}:{line}:{1 if column is None else column}"
        super().__init__(f"{place}: {message}" + (f"; {advice}" if advice else ""))
        self.name = name
        self.line = line
        self.column = column
        self.message = message
        self.advice = advice

    def __reduce__(self) -> tuple[type[FileError], tuple[str, int | None, int | None, str, str]]:
        # `Exception` would call the class with only the finished text, for instance after
        # unpickling.
        return type(self), (self.name, self.line, self.column, self.message, self.advice)


def error_at(name: str, text: str, offset: int, message: str, advice: str = "") -> FileError:
    """The error for one character of a text, or for its end."""
    line = text.count("\n", 0, offset) + 1
    return FileError(name, line, offset - text.rfind("\n", 0, offset), message, advice)


def twice(name: str, text: str, key: str, first: int, offset: int) -> FileError:
    """The error for a duplicate key, with the line of the first one."""
    line = text.count("\n", 0, first) + 1
    return error_at(
        name, text, offset, f"the key {named(key)} is given twice; first on line {line}"
    )


def unexpected(
    name: str, text: str, offset: int, problem: str, hints: Mapping[str, str] | None = None
) -> FileError:
    """The error at the position where a parser stopped.

    Hints are advice, by the lower-case text at the position.
    """
    token = describe(text, offset)
    hint = (hints or {}).get(token.lower(), "")
    if not hint and problem == "Invalid value" and token[0] == "'" and token[1].isalpha():
        hint = "; text needs quotes"
    problem = f"{problem[:1].lower()}{problem[1:]}"
    return error_at(name, text, offset, f"{problem}, found {token}{hint}")


def describe(text: str, offset: int) -> str:
    """The word or sign at one place of a text, such as `'='`, `'NaN'` or `the end of the file`."""
    if offset >= len(text):
        return "the end of the file"
    end = offset
    while end < len(text) and end - offset < 20 and (text[end].isalnum() or text[end] in "_-"):
        end += 1
    word = text[offset : max(end, offset + 1)]
    if word in "\r\n":
        return "the end of the line"
    if word == "'":
        return '"\'"'
    return f"'{word}'" if word.isprintable() else f"the character U+{ord(word[0]):04X}"


def named(key: str) -> str:
    """Format a key for an error: one line, in quotes, shortened."""
    short = key if len(key) <= 60 else key[:57] + "..."
    return f"'{short}'" if short.isprintable() else repr(short)
