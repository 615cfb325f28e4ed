"""Where each key and each list item of a TOML text stands, and which key is given twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .document import Place
from .toml_tokens import Token, tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

_END = Token("end", "", -1)


class Duplicate:
    """A key or table that is given twice.

    Arguments:
        key: its last part.
        first: the offset at which it is first given.
        second: the offset at which it is given again.
    """

    __slots__ = ("first", "key", "second")

    def __init__(self, key: str, first: int, second: int) -> None:
        self.key = key
        self.first = first
        self.second = second


def scan_toml(text: str) -> tuple[Place, Duplicate | None]:
    """Find where each key and each list item stands.

    Arguments:
        text: the text, nested no deeper than the limit; what follows broken syntax is not read.

    Returns:
        the place of the top level with all places inside it, and the first key that is given twice.
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
