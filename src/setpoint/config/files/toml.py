"""Reading TOML: the values by the standard library, positions and limits by a scan of our own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..words.plain_data import MAX_DEPTH, MAX_DIGITS, TOO_BIG, TOO_DEEP, TOO_LONG, children
from .document import (
    MAX_NODES,
    TOO_MANY,
    Document,
    FileError,
    Place,
    describe,
    error_at,
    has_long_number,
    is_shallow,
    may_nest_deeply,
    named,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

if TYPE_CHECKING:
    Path = tuple[str | int, ...]

# By name, so that `datetime` need not be imported to ask.
_REFUSED = {
    name: f"a {kind} is not a type that fields have; put it in quotes"
    for name, kind in (("date", "date"), ("datetime", "date with a time"), ("time", "time of day"))
}


class _TooBig(float):
    """A number that was not written as infinite, and would become so unseen."""


_REFUSED[_TooBig.__name__] = f"the number {TOO_BIG}"


_CLASSES = frozenset((dict, list, str, int, float, bool))
_INFINITE = float("inf")


def parse_toml(text: str, name: str) -> Document:
    """Read TOML 1.0; dates and times are refused, since no field takes them.

    Returns:
        the document; empty text is an empty mapping.

    Raises:
        FileError: the text is not TOML, or breaks one of the limits.
    """
    import tomllib

    def scan() -> Place:
        return scan_toml(text)[0]

    if _may_be_extreme(text):
        refuse_extremes(text, name)
    try:
        data = tomllib.loads(text, parse_float=_float)
    except ValueError as error:
        raise explain(text, name, str(error)) from None
    document = Document(name, "toml", data, text, scan)
    if not is_shallow(data, _CLASSES):
        _check(document, data, ())
    return document


# A text in quotes, and a comment, of one line.
_PLAIN = r"""\"(?:[^"\\]|\\.)*+"|'[^']*+'|\#.*"""
# A list or table without others inside, with texts in plain quotes at most.
_FLAT = r"""[\[{](?:[^\[\]{}"'#]++|"[^"\\\n\[\]{}]*+")*+[\]}]"""


def _may_be_extreme(text: str) -> bool:
    """A cheap test that no ordinary file fails, before the exact one."""
    opening, dots = text.count("[") + text.count("{"), text.count(".")
    # Twice the brackets: an item follows each, and each may itself be one.
    nodes = 2 * opening + 2 * text.count("=") + text.count(",") + dots
    if nodes > MAX_NODES["toml"] or has_long_number(text):
        return True
    if opening > MAX_DEPTH:
        if '"""' in text or "'''" in text:  # in quotes over many lines anything may stand
            return True
        deep = opening - len(re.findall(_FLAT, text)) >= MAX_DEPTH
        if deep and may_nest_deeply(text, _PLAIN):
            return True
    return dots > MAX_DEPTH and any(line.count(".") >= MAX_DEPTH for line in text.split("\n"))


def _float(literal: str) -> float:
    number = float(literal)
    return _TooBig(number) if abs(number) == _INFINITE and "inf" not in literal else number


def _check(document: Document, value: object, path: Path) -> None:
    """Refuse values that no field takes, and nesting that headers and dotted keys add up to."""
    if len(path) >= MAX_DEPTH and isinstance(value, (dict, list)):
        raise _error(document, path, TOO_DEEP)
    if type(value).__name__ in _REFUSED:
        raise _error(document, path, _REFUSED[type(value).__name__])
    for key, item in children(value):
        _check(document, item, (*path, key))


def _error(document: Document, path: Path, message: str) -> FileError:
    line, column = document.locate(path) or (1, 1)
    return FileError(document.name, line, column, message)


# Possessive repeats (`*+`) keep this linear. A string that is not closed runs as far as it may.
_TOKEN = r"""
    (?P<comment>  \#[^\n]*+ )
  | (?P<string>   \"{3} (?: [^"\\]++ | \\[\s\S] | "(?!"") )*+ (?:"{3,5})?
                | '{3}  (?: [^']++ | '(?!'') )*+ (?:'{3,5})?
                | " (?: [^"\\\n]++ | \\[^\n] )*+ "?
                | ' [^'\n]*+ '? )
  | (?P<mark>     [\[\]{}.,=\n] )
  | (?P<bare>     [^\s\#"'\[\]{}.,=]++ )
    """


class Token:
    """One token.

    Arguments:
        kind: `"string"`, `"mark"` (brackets, `.`, `,`, `=` and the end of a line) or `"bare"`.
        offset: its first character, counted from 0.
    """

    __slots__ = ("kind", "offset", "text")

    def __init__(self, kind: str, text: str, offset: int) -> None:
        self.kind = kind
        self.text = text
        self.offset = offset


def tokens(text: str) -> Iterator[Token]:
    """Split a TOML text; wrong as TOML may be, this never fails.

    Returns:
        all tokens but comments, in order.
    """
    for match in re.finditer(_TOKEN, text, re.VERBOSE):
        kind = match.lastgroup
        if kind is not None and kind != "comment":
            yield Token(kind, match[0], match.start())


def refuse_extremes(text: str, name: str) -> None:
    """Refuse what would exhaust the standard library's reader: depth, size, long numbers.

    Raises:
        FileError: one of the limits is broken.
    """
    depth = dots = nodes = 0
    before = ""
    for token in tokens(text):
        # A number with a fraction is three tokens, and one value.
        if token.kind in ("bare", "string") or token.text in ("[", "{"):
            nodes += not (before == "." and token.text[0].isdigit())
        before = token.text
        if nodes > MAX_NODES["toml"]:
            raise error_at(name, text, token.offset, TOO_MANY.format(MAX_NODES["toml"]))
        if token.kind == "bare":
            digits = len(token.text.lstrip("+-").replace("_", ""))
            if digits > MAX_DIGITS and token.text.lstrip("+-")[0].isdigit():
                raise error_at(name, text, token.offset, TOO_LONG.format(digits))
        elif token.text in ("[", "{"):
            depth, dots = depth + 1, 0
        elif token.text in ("]", "}"):
            depth, dots = depth - 1, 0
        elif token.text == ".":
            dots += 1
        elif token.kind == "mark":
            dots = 0
        if depth > MAX_DEPTH or dots >= MAX_DEPTH:
            raise error_at(name, text, token.offset, TOO_DEEP)


# By how the standard library's message begins; `{}` is what stands at that place.
_WORDS = {
    "Invalid statement": "expected a key, a [table] or a comment, found {}",
    "Expected newline or end of document": "expected the end of the line, found {}",
    "Expected '=' after a key": "expected '=' after the key, found {}",
    "Expected ']' at the end": "expected ']' after the name of the table, found {}",
    "Expected ']]' at the end": "expected ']]' after the name of the list, found {}",
    "Invalid initial character for a key": "expected a key, found {}",
    "Invalid value": "expected a value, found {}",
    "Unclosed array": "expected ',' or ']' in the list, found {}",
    "Unclosed inline table": "expected ',' or '}}' in the inline table, found {}",
    "Unterminated string": "expected the closing quotes of a text, found {}",
    'Expected "\'"': "expected the closing quote of a text, found {}",
    "Unescaped '\\'": 'expected one of \\b \\t \\n \\f \\r \\" \\\\ \\u \\U after a backslash',
    "Invalid hex value": "expected hexadecimal digits after \\u or \\U, found {}",
    "Escaped character is not": "expected the code of a character after \\u or \\U",
    "Found invalid character": "{} may not stand here",
    "Invalid date or datetime": "expected a value, found a date that does not exist",
    "Cannot ": "a key or table is given twice",
    "Duplicate inline table key": "a key is given twice",
}


def explain(text: str, name: str, message: str) -> FileError:
    """Turn an error of the standard library into one that says where and what was expected."""
    problem, place = _split(message)
    lines = text.split("\n")
    line, column = place or (len(lines), len(lines[-1]) + 1)
    start = sum(len(before) + 1 for before in lines[: line - 1])
    duplicate = scan_toml(text)[1]
    # Reading stops at the first error; a key given twice before that place therefore is the error.
    if duplicate is not None and duplicate.second <= start + column - 1:
        first = text.count("\n", 0, duplicate.first) + 1
        line = text.count("\n", 0, duplicate.second) + 1
        column = duplicate.second - text.rfind("\n", 0, duplicate.second)
        words = f"{named(duplicate.key)} is given twice; first on line {first}"
        return FileError(name, line, column, words)
    found = describe(text, start + column - 1)
    if problem.startswith("Illegal character"):
        if found == "the end of the line":
            words = "expected the closing quote of a text before the end of the line"
            return FileError(name, line, column, words)
        return FileError(name, line, column, f"{found} must be written as an escape")
    for beginning, template in _WORDS.items():
        if problem.startswith(beginning):
            hint = _hint(found) if beginning == "Invalid value" else ""
            return FileError(name, line, column, template.format(found) + hint)
    return FileError(name, line, column, f"not valid TOML: {problem}")


def _hint(found: str) -> str:
    word = found.strip("'").lower()
    if found[0] != "'" or not word[:1].isalpha():
        return ""
    if word in ("true", "false"):
        return f"; write {word}"
    return '; write "null" in quotes' if word in ("null", "none") else "; text needs quotes"


def _split(message: str) -> tuple[str, tuple[int, int] | None]:
    """`"what (at line 3, column 4)"`, or `"what (at end of document)"`, taken apart."""
    problem, _, place = message.rpartition(" (at ")
    words = place.rstrip(")").replace(",", "").split()
    if len(words) == 4 and words[0] == "line" and words[1].isdigit() and words[3].isdigit():
        return problem, (int(words[1]), int(words[3]))
    return problem or message, None


_END = Token("end", "", -1)


class Duplicate:
    """A key or table that is given twice."""

    __slots__ = ("first", "key", "second")

    def __init__(self, key: str, first: int, second: int) -> None:
        self.key = key
        self.first = first
        self.second = second


def scan_toml(text: str) -> tuple[Place, Duplicate | None]:
    """Find where each key and each list item stands.

    Arguments:
        text: the text, nested no deeper than the limit; what follows broken syntax is not read.
    """
    scanner = _Scanner(tokens(text))
    scanner.document()
    return scanner.root, scanner.duplicate


class _Scanner:
    def __init__(self, source: Iterator[Token]) -> None:
        self.root = Place(0)
        self.duplicate: Duplicate | None = None
        self._source = source
        self._token = next(source, _END)
        self._headers: set[Place] = set()
        self._values: set[Place] = set()
        self._last_items: dict[Place, Place] = {}  # of the arrays that [[headers]] make

    def document(self) -> None:
        table: Place | None = self.root
        while table is not None and self._token is not _END and self.duplicate is None:
            if self._token.text == "\n":
                self._advance()
            elif self._token.text == "[":
                table = self._header()
            elif not self._key_value(table):
                return

    def _advance(self) -> Token:
        token, self._token = self._token, next(self._source, _END)
        return token

    def _take(self, mark: str) -> bool:
        if self._token.text != mark:
            return False
        self._advance()
        return True

    def _header(self) -> Place | None:
        """`[a.b]` or `[[a.b]]`; the table that the lines below it fill."""
        start = self._advance().offset
        is_array = self._token.text == "[" and self._token.offset == start + 1
        if is_array:
            self._advance()
        keys = self._keys()
        if not keys or not self._take("]") or (is_array and not self._take("]")):
            return None
        table = self.root
        for index, (key, offset) in enumerate(keys):
            table = table.add(key, offset)
            if table in self._values:
                self._twice(key, table.offset, offset)
            if table in self._last_items and not (is_array and index == len(keys) - 1):
                table = self._last_items[table]
        if is_array:
            if table in self._headers:
                self._twice(keys[-1][0], table.offset, keys[-1][1])
            item = table.add(len(table.children), start)
            self._last_items[table] = item
            return item
        if table in self._headers:
            self._twice(keys[-1][0], table.offset, keys[-1][1])
        self._headers.add(table)
        return table

    def _twice(self, key: str, first: int, second: int) -> None:
        if self.duplicate is None:
            self.duplicate = Duplicate(key, first, second)

    def _keys(self) -> list[tuple[str, int]]:
        """The parts of a dotted key with their offsets; empty where no key stands."""
        keys: list[tuple[str, int]] = []
        while self._token.kind in ("bare", "string"):
            token = self._advance()
            keys.append((_unquote(token.text), token.offset))
            if not self._take("."):
                return keys
        return []

    def _key_value(self, table: Place) -> bool:
        keys = self._keys()
        if not keys or not self._take("="):
            return False
        for key, offset in keys[:-1]:
            table = table.add(key, offset)
            if table in self._values:
                self._twice(key, table.offset, offset)
        key, offset = keys[-1]
        known = table.children.get(key)
        if known is not None:
            self._twice(key, known.offset, offset)
        place = table.add(key, offset)
        self._values.add(place)
        return self._value(place)

    def _value(self, place: Place) -> bool:
        if self._take("["):
            return self._array(place)
        if self._take("{"):
            return self._inline_table(place)
        found = False
        # A number with a fraction, or a date with a space, is several tokens.
        while self._token.kind in ("bare", "string") or self._token.text == ".":
            self._advance()
            found = True
        return found

    def _array(self, place: Place) -> bool:
        index = 0
        while True:
            self._skip_lines()
            if self._take("]"):
                return True
            if not self._value(place.add(index, self._token.offset)):
                return False
            index += 1
            self._skip_lines()
            if not self._take(",") and self._token.text != "]":
                return False

    def _inline_table(self, place: Place) -> bool:
        while True:
            self._skip_lines()
            if self._take("}"):
                return True
            if not self._key_value(place):
                return False
            self._skip_lines()
            if not self._take(",") and self._token.text != "}":
                return False

    def _skip_lines(self) -> None:
        while self._token.text == "\n":
            self._advance()


def _unquote(key: str) -> str:
    if len(key) < 2 or key[0] not in "\"'" or key[-1] != key[0]:
        return key
    if key[0] == "'" or "\\" not in key:
        return key[1:-1]
    import tomllib

    try:
        return str(tomllib.loads(f"k = {key}")["k"])
    except ValueError:  # a broken escape, which the reader of the values reports
        return key[1:-1]
