"""Reading TOML: values and errors from the standard library, positions from our own scan."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..words.plain_data import INFINITIES, MAX_DEPTH, MAX_DIGITS, TOO_BIG, TOO_DEEP
from .file_document import FileDocument, FileError, FilePosition, error_at, twice, unexpected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Token = tuple[str, str, int]  # kind, text and offset

# By name, to avoid importing `datetime`.
_REFUSED = {
    name: f"a {kind} is not a type of any field; put it in quotes"
    for name, kind in (("date", "date"), ("datetime", "date with a time"), ("time", "time of day"))
} | {"_TooBig": f"the number {TOO_BIG}"}
_HINTS = {
    "'null'": '; write "null" in quotes',
    "'none'": '; write "null" in quotes',
    "'true'": "; write true",
    "'false'": "; write false",
}
_BACKSLASH = (
    "; a backslash in \"...\" begins an escape: write 'C:\\data' in single quotes, or C:/data"
)
# Possessive repeats (`*+`) keep this linear. An unclosed string extends as far as it can.
_TOKEN = r"""
    (?P<comment>  \#[^\n]*+ )
  | (?P<string>   \"{3} (?: [^"\\]++ | \\[\s\S] | "(?!"") )*+ (?:"{3,5})?
                | '{3}  (?: [^']++ | '(?!'') )*+ (?:'{3,5})?
                | " (?: [^"\\\n]++ | \\[^\n] )*+ "?
                | ' [^'\n]*+ '? )
  | (?P<mark>     [\[\]{}.,=\n] )
  | (?P<bare>     [^\s\#"'\[\]{}.,=]++ )
    """


class _TooBig(float):
    """Number literal that would overflow to infinity."""


def parse_toml(text: str, name: str) -> FileDocument:
    """Read TOML 1.0; dates and times are refused, since no field accepts them.

    Raises:
        FileError: the text is not TOML, or exceeds a limit.
    """
    import tomllib

    _refuse_depth(text, name)
    try:
        data = tomllib.loads(text, parse_float=_float)
    except tomllib.TOMLDecodeError as error:
        raise _explain(text, name, str(error)) from None
    except ValueError:
        raise FileError(name, None, None, f"a number has more than {MAX_DIGITS} digits") from None
    document = FileDocument(name, "toml", data, text, lambda: scan_toml(text, name))
    document.check(_REFUSED, data)
    return document


def _float(literal: str) -> float:
    number = float(literal)
    return _TooBig(number) if number in INFINITIES and "inf" not in literal else number


def tokens(text: str) -> Iterator[Token]:
    """Split a TOML text into tokens; invalid TOML raises no error.

    Returns:
        all tokens but comments, in order; their kinds are `string`, `mark` (brackets, `.`, `,`,
        `=` and the end of a line) and `bare`.
    """
    for match in re.finditer(_TOKEN, text, re.VERBOSE):
        kind = match.lastgroup
        if kind is not None and kind != "comment":
            yield kind, match[0], match.start()


def _refuse_depth(text: str, name: str) -> None:
    """Refuse nesting that would exhaust the standard library's reader."""
    if text.count("[") + text.count("{") + text.count(".") < MAX_DEPTH:
        return
    depth = dots = 0
    for kind, symbol, offset in tokens(text):
        if kind != "mark":
            continue
        depth += (symbol in "[{") - (symbol in "]}")
        dots = dots + 1 if symbol == "." else 0
        if depth > MAX_DEPTH or dots >= MAX_DEPTH:
            raise error_at(name, text, offset, TOO_DEEP)


def _explain(text: str, name: str, message: str) -> FileError:
    """Convert an error of the standard library, `PROBLEM (at line 3, column 4)`."""
    problem, _, place = message.rpartition(" (at ")
    offset = len(text)
    if numbers := re.fullmatch(r"line (\d+), column (\d+)\)", place):
        lines = text.split("\n")[: int(numbers[1]) - 1]
        offset = sum(len(line) + 1 for line in lines) + int(numbers[2]) - 1
    error = unexpected(name, text, offset, problem, _HINTS)
    if "hex value" in problem or problem.startswith("Unescaped '\\'"):
        error = FileError(name, error.line, error.column, error.message + _BACKSLASH)
    try:
        scan_toml(text, name)
    except FileError as duplicate:
        # The parser stops at the first error; report a duplicate key before that position instead.
        if (duplicate.line or 0, duplicate.column or 0) <= (error.line or 0, error.column or 0):
            return duplicate
    return error


_END: Token = ("end", "", -1)


def scan_toml(text: str, name: str) -> FilePosition:
    """Find the position of each key and list item, up to the first syntax error.

    Raises:
        FileError: a key or table is duplicated.
    """
    scanner = _Scanner(text, name)
    scanner.document()
    return scanner.root


class _Scanner:
    def __init__(self, text: str, name: str) -> None:
        self.root = FilePosition(0)
        self._text, self._name = text, name
        self._source = tokens(text)
        self._token = next(self._source, _END)
        self._headers: set[FilePosition] = set()
        self._values: set[FilePosition] = set()
        # The arrays made by [[headers]].
        self._last_items: dict[FilePosition, FilePosition] = {}

    def document(self) -> None:
        table: FilePosition | None = self.root
        while table is not None and self._token is not _END:
            if self._take("\n"):
                continue
            if self._token[1] == "[":
                table = self._header()
            elif not self._key_value(table):
                return

    def _advance(self) -> Token:
        token, self._token = self._token, next(self._source, _END)
        return token

    def _take(self, symbol: str) -> bool:
        if self._token[1] != symbol:
            return False
        self._advance()
        return True

    def _header(self) -> FilePosition | None:
        """Parse `[a.b]` or `[[a.b]]`; return the table for the lines below it."""
        start = self._advance()[2]
        is_array = self._token[1] == "[" and self._token[2] == start + 1
        if is_array:
            self._advance()
        keys = self._keys()
        if not keys or not self._take("]") or (is_array and not self._take("]")):
            return None
        table = self.root
        for index, (key, offset) in enumerate(keys):
            table = table.add(key, offset)
            if table in self._values:
                raise self._twice(key, table, offset)
            if table in self._last_items and not (is_array and index == len(keys) - 1):
                table = self._last_items[table]
        if table in self._headers:
            raise self._twice(keys[-1][0], table, keys[-1][1])
        if is_array:
            item = self._last_items[table] = table.add(len(table.children), start)
            return item
        self._headers.add(table)
        return table

    def _twice(self, key: str, first: FilePosition, offset: int) -> FileError:
        return twice(self._name, self._text, key, first.offset, offset)

    def _keys(self) -> list[tuple[str, int]]:
        """The parts of a dotted key with their offsets; empty if there is no key."""
        keys: list[tuple[str, int]] = []
        while self._token[0] in ("bare", "string"):
            _, key, offset = self._advance()
            keys.append((_unquote(key), offset))
            if not self._take("."):
                return keys
        return []

    def _key_value(self, table: FilePosition) -> bool:
        keys = self._keys()
        if not keys or not self._take("="):
            return False
        for key, offset in keys[:-1]:
            table = table.add(key, offset)
            if table in self._values:
                raise self._twice(key, table, offset)
        key, offset = keys[-1]
        if key in table.children:
            raise self._twice(key, table.children[key], offset)
        place = table.add(key, offset)
        self._values.add(place)
        return self._value(place)

    def _value(self, place: FilePosition) -> bool:
        if self._take("["):
            return self._entries(
                "]", lambda: self._value(place.add(len(place.children), self._token[2]))
            )
        if self._take("{"):
            return self._entries("}", lambda: self._key_value(place))
        start = self._token
        # A number with a fraction, or a date with a space, spans several tokens.
        while self._token[0] in ("bare", "string") or self._token[1] == ".":
            self._advance()
        return self._token is not start

    def _entries(self, closing: str, read: Callable[[], bool]) -> bool:
        while True:
            self._skip_lines()
            if self._take(closing):
                return True
            if not read():
                return False
            self._skip_lines()
            if not self._take(",") and self._token[1] != closing:
                return False

    def _skip_lines(self) -> None:
        while self._take("\n"):
            pass


def _unquote(key: str) -> str:
    if len(key) < 2 or key[0] not in "\"'" or key[-1] != key[0]:
        return key
    if key[0] == "'" or "\\" not in key:
        return key[1:-1]
    import tomllib

    try:
        return str(tomllib.loads(f"k = {key}")["k"])
    except ValueError:  # a broken escape, which the TOML parser reports
        return key[1:-1]
