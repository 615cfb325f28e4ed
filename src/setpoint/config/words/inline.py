"""Lists and mappings in one text, as the command line and the environment give them.

`[1, 2]`, `1,2`, `{type = "text", paths = [a, b]}` and JSON are read; bare words stay texts that
the field's type reads later.
"""

from __future__ import annotations

from .errors import Invalid
from .texts import PlainScalar

DEPTH = 32
ENDS = ",]}\n"


def parse_flow(text: str) -> object:
    """Read a list, a mapping or a scalar.

    Arguments:
        text: for instance `{rank: 8, targets: [q, v]}`.

    Returns:
        lists, dicts and scalars; unquoted scalars as `PlainScalar`.

    Raises:
        Invalid: if the text is not well formed, with the position.
    """
    reader = _Reader(str(text))
    value = reader.value(0)
    reader.end()
    return value


def parse_list(text: str) -> list[object]:
    """Read the items of a list, with or without brackets.

    Arguments:
        text: `[1, 2]` or `1,2`; the empty text is the empty list.

    Raises:
        Invalid: if the text is not well formed.
    """
    stripped = str(text).strip()
    if not stripped:
        return []
    if not stripped.startswith("["):
        stripped = f"[{stripped}]"
    reader = _Reader(stripped)
    items = reader.items(0)
    reader.end()
    return items


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def fail(self, message: str) -> Invalid:
        # The text itself is shown by the report, unless it may hold a secret.
        return Invalid(f"cannot be read at position {self.at + 1}: {message}")

    def peek(self) -> str:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.text[self.at] if self.at < len(self.text) else ""

    def end(self) -> None:
        if self.peek():
            raise self.fail("unexpected text after the value")

    def value(self, depth: int) -> object:
        if depth > DEPTH:
            raise self.fail(f"nested deeper than {DEPTH} levels")
        start = self.peek()
        if start == "[":
            return self.items(depth)
        if start == "{":
            return self.mapping(depth)
        return self.scalar(ENDS)

    def items(self, depth: int) -> list[object]:
        self.at += 1
        found: list[object] = []
        while self.peek() != "]":
            if not self.peek():
                raise self.fail("the list is not closed by ]")
            found.append(self.value(depth + 1))
            if self.peek() == ",":
                self.at += 1
            elif self.peek() not in ("]", ""):
                raise self.fail("expected , or ]")
        self.at += 1
        return found

    def mapping(self, depth: int) -> dict[str, object]:
        self.at += 1
        found: dict[str, object] = {}
        while self.peek() != "}":
            if not self.peek():
                raise self.fail("the mapping is not closed by }")
            key = str(self.scalar(ENDS + ":="))
            if self.peek() not in (":", "="):
                raise self.fail("expected = or : after the key")
            self.at += 1
            if key in found:
                raise self.fail("a key is given twice")
            found[key] = self.value(depth + 1)
            if self.peek() == ",":
                self.at += 1
            elif self.peek() not in ("}", ""):
                raise self.fail("expected , or }")
        self.at += 1
        return found

    def scalar(self, ends: str) -> object:
        start = self.peek()
        if start and start in "\"'":
            return self.quoted(start)
        begin = self.at
        while self.at < len(self.text) and self.text[self.at] not in ends:
            # A reference may hold any of the closing signs.
            if self.text.startswith("${", self.at):
                close = self.text.find("}", self.at)
                if close < 0:
                    raise self.fail("the reference is not closed by }")
                self.at = close
            self.at += 1
        word = self.text[begin : self.at].strip()
        if not word:
            raise self.fail("expected a value")
        return PlainScalar(word)

    def quoted(self, quote: str) -> str:
        escapes = dict(zip('ntrbf/\\"', '\n\t\r\b\f/\\"', strict=True))
        self.at += 1
        parts: list[str] = []
        while self.at < len(self.text):
            sign = self.text[self.at]
            self.at += 1
            if sign == quote:
                return "".join(parts)
            if sign == "\\" and quote == '"':
                follow = self.text[self.at : self.at + 1]
                if follow == "u":
                    parts.append(self.unicode())
                    continue
                if follow not in escapes:
                    raise self.fail(f"unknown escape \\{follow}")
                sign = escapes[follow]
                self.at += 1
            parts.append(sign)
        raise self.fail(f"the text is not closed by {quote}")

    def unicode(self) -> str:
        code = self.hexadecimal()
        # JSON writes signs beyond the first 65536 as two escapes.
        if 0xD800 <= code < 0xDC00 and self.text.startswith("\\u", self.at):
            low = self.hexadecimal(1)
            if 0xDC00 <= low < 0xE000:
                return chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00))
        if 0xD800 <= code < 0xE000:
            raise self.fail("half a surrogate pair is no character")
        return chr(code)

    def hexadecimal(self, skip: int = 0) -> int:
        self.at += skip
        digits = self.text[self.at + 1 : self.at + 5]
        if len(digits) < 4 or digits.strip("0123456789abcdefABCDEF"):
            raise self.fail(f"\\u needs four hexadecimal digits, got {digits!r}")
        self.at += 5
        return int(digits, 16)
