"""Reading JSON: the values by the standard library, errors and positions by a scan of our own."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import cache

from ..words.plain_data import (
    HALF_PAIR,
    MAX_DEPTH,
    MAX_DIGITS,
    TOO_BIG,
    TOO_DEEP,
    TOO_LONG,
    is_text,
)
from .document import (
    MAX_NODES,
    TOO_MANY,
    Document,
    FileError,
    Place,
    describe,
    error_at,
    has_long_number,
    is_mapping,
    is_shallow,
    may_nest_deeply,
    named,
)

_SPACE = r"[ \t\r\n]*+"
_NUMBER = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?"
_STRING_BODY = r'"(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+'
_INFINITE = float("inf")


def parse_json(text: str, name: str) -> Document:
    """Read JSON; refused is what other readers let pass: keys given twice, NaN, infinity, 1e999.

    Returns:
        the document; empty text is an empty mapping.

    Raises:
        FileError: the text is not JSON, or breaks one of the limits.
    """

    def scan() -> Place:
        return scan_json(text, name)

    if not text.strip(" \t\r\n"):
        return Document(name, "json", {}, text, lambda: Place(0))
    # Half a surrogate pair, written as an escape, would make text that cannot be written again.
    half = "\\ud" in text or "\\uD" in text
    lifted = not 0 < sys.get_int_max_str_digits() <= MAX_DIGITS
    doubtful = half or (lifted and has_long_number(text))
    most = MAX_NODES["json"]
    if doubtful or (len(text) > most and sum(map(text.count, "[{,:")) > most):
        _refuse_extremes(text, name)
    if doubtful:
        scan()
    try:
        data = _decoder()(text)
    except (ValueError, RecursionError) as error:
        _refuse_extremes(text, name)
        scan()  # says the same with lines, columns and what was expected
        raise FileError(name, 1, 1, f"not valid JSON: {error}") from None
    if text.count("[") + text.count("{") > MAX_DEPTH and not is_shallow(data):
        _refuse_extremes(text, name)
    if not is_mapping(data):
        offset = len(text) - len(text.lstrip(" \t\r\n"))
        raise error_at(
            name, text, offset, "expected '{': the top level is a mapping of keys to values"
        )
    return Document(name, "json", data, text, scan)


@cache
def _decoder() -> Callable[[str], object]:
    import json

    return json.JSONDecoder(
        object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite
    ).decode


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key is given twice")
    return result


def _no_constant(literal: str) -> object:
    raise ValueError(f"{literal} is not JSON")


def _finite(literal: str) -> float:
    number = float(literal)
    if abs(number) == _INFINITE or len(literal) > MAX_DIGITS:
        raise ValueError(f"{literal} {TOO_BIG}")
    return number


def _refuse_extremes(text: str, name: str) -> None:
    """Refuse what would exhaust the stack of a recursive reader, or the memory."""
    most = MAX_NODES["json"]
    marks = sum(map(text.count, "[{,:"))
    if marks <= most and not may_nest_deeply(text, r'"(?:[^"\\]|\\.)*+"'):
        return
    depth = nodes = 0
    for match in re.finditer(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}:,]', text, re.DOTALL):
        mark = match[0]
        if mark in ("]", "}"):
            depth -= 1
        elif mark[0] != '"':
            # Each key and each value follows one of these marks.
            nodes += 1
            depth += mark in ("[", "{")
        if depth > MAX_DEPTH:
            raise error_at(name, text, match.start(), TOO_DEEP)
        if nodes > most:
            raise error_at(name, text, match.start(), TOO_MANY.format(most))


def scan_json(text: str, name: str) -> Place:
    """Find where each key and each list item of a JSON text stands.

    Raises:
        FileError: the text is not JSON, a key is given twice, or a number or a text is refused.
    """
    return _Scanner(text, name).document()


class _Scanner:
    def __init__(self, text: str, name: str) -> None:
        self.text = text
        self.name = name
        self.space, self.number = re.compile(_SPACE), re.compile(_NUMBER)
        self.string_body = re.compile(_STRING_BODY)
        self.offset: int = 0

    def document(self) -> Place:
        place = Place(0)
        self._value(place)
        if self._next():
            raise self._expected("the end of the file")
        return place

    def _next(self) -> str:
        """Skip white space; the next character, or the empty string at the end."""
        match = self.space.match(self.text, self.offset)
        self.offset = match.end() if match else self.offset
        return self.text[self.offset : self.offset + 1]

    def _error(self, message: str, offset: int | None = None) -> FileError:
        return error_at(self.name, self.text, self.offset if offset is None else offset, message)

    def _expected(self, what: str, hint: str = "") -> FileError:
        found = describe(self.text, self.offset)
        if found in ("'/'", "'#'"):
            hint = "; JSON has no comments"
        elif found == '"\'"':
            hint = "; JSON puts text in double quotes"
        return self._error(f"expected {what}, found {found}{hint}")

    def _value(self, place: Place) -> None:
        first = self._next()
        if first == "{":
            self._object(place)
        elif first == "[":
            self._array(place)
        elif first == '"':
            self._string()
        elif first and first in "-0123456789":
            self._number()
        else:
            for literal in ("true", "false", "null"):
                if describe(self.text, self.offset) == f"'{literal}'":
                    self.offset += len(literal)
                    return
            raise self._expected("a value", self._literal_hint())

    def _literal_hint(self) -> str:
        word = describe(self.text, self.offset).strip("'")
        if word == "NaN":
            return "; no field takes it"
        if word == "Infinity":
            return '; write "inf" in quotes'
        if word.lower() in ("true", "false", "null", "none"):
            return f"; write {word.lower().replace('none', 'null')}"
        return "; text needs double quotes" if word[:1].isalpha() and " " not in word else ""

    def _object(self, place: Place) -> None:
        self.offset += 1
        if self._next() == "}":
            self.offset += 1
            return
        while True:
            if self._next() != '"':
                raise self._expected("a key in double quotes")
            start = self.offset
            key = self._string()
            known = place.children.get(key)
            if known is not None:
                line = self.text.count("\n", 0, known.offset) + 1
                raise self._error(
                    f"the key {named(key)} is given twice; first on line {line}", start
                )
            if self._next() != ":":
                raise self._expected(f"':' after the key {named(key)}")
            self.offset += 1
            self._value(place.add(key, start))
            if self._end_of_item("}"):
                return

    def _array(self, place: Place) -> None:
        self.offset += 1
        if self._next() == "]":
            self.offset += 1
            return
        index = 0
        while True:
            self._next()
            self._value(place.add(index, self.offset))
            index += 1
            if self._end_of_item("]"):
                return

    def _end_of_item(self, closing: str) -> bool:
        """Step over a comma or the closing bracket; True for the latter."""
        found = self._next()
        if found not in (",", closing):
            raise self._expected(f"',' or '{closing}'")
        comma = self.offset
        self.offset += 1
        if found == "," and self._next() == closing:
            raise self._error(f"expected no comma before '{closing}'", comma)
        return found == closing

    def _number(self) -> None:
        match = self.number.match(self.text, self.offset)
        if match is None:
            if self.text.startswith("-Infinity", self.offset):
                raise self._expected("a value", '; write "-inf" in quotes')
            raise self._expected("a number")
        if len(match[0]) > MAX_DIGITS and len(match[0].lstrip("-")) > MAX_DIGITS:
            raise self._error(TOO_LONG.format(len(match[0].lstrip("-"))))
        if not match[0].lstrip("-").isdigit() and abs(float(match[0])) == float("inf"):
            raise self._error(f"{describe(self.text, self.offset)} {TOO_BIG}")
        self.offset = match.end()

    def _string(self) -> str:
        start = self.offset
        match = self.string_body.match(self.text, start)
        self.offset = match.end() if match else start
        stop = self.text[self.offset : self.offset + 1]
        if stop == "\\":
            escape = self.text[self.offset : self.offset + 2]
            if escape == "\\u":
                raise self._error("expected four hexadecimal digits after '\\u'")
            raise self._error(
                'expected one of \\" \\\\ \\/ \\b \\f \\n \\r \\t \\u after a backslash, '
                f"found {describe(self.text, self.offset + 1)}"
            )
        if stop in ("", "\n", "\r"):
            raise self._error("expected a closing '\"' for the text that begins here", start)
        if stop != '"':
            raise self._error(
                f"the control character U+{ord(stop):04X} must be written as an escape"
            )
        self.offset += 1
        token = self.text[start : self.offset]
        if "\\" not in token:
            return token[1:-1]
        import json

        value: str = json.loads(token)
        if not is_text(value):
            raise self._error(HALF_PAIR, start)
        return value
