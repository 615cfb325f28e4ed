"""Values as text: in errors, on a command line, in a file; and parsing of the inline syntax."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import islice
from types import BuiltinFunctionType, FunctionType
from typing import Any, cast

from .errors import Invalid, Problem, hide_secrets
from .names import Path, dotted
from .plain_data import MAX_BITS, MISSING, PlainScalar, is_own, is_text, item_at, member_text

MAX_LENGTH = 100  # characters of a value in an error
MAX_ITEMS = 50  # items of a list or mapping shown in an error
MAX_LEVELS = 4  # nested lists and mappings shown in an error
DATA = ("[", "{", '"', "'")  # openings of a list, a mapping or a quoted text
DEPTH = 32
ENDS = ",]}\n"
_DOUBLE_QUOTED = r'"((?:[^"\\]|\\.)*+)"'
SHELL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-+/=:@%,")
"""Characters without a meaning in shells."""
# A quoting that JSON, TOML and YAML all read. It escapes the characters that one of them forbids
# (control characters, non-characters), line breaks, and characters that make a line look like
# another (the byte order mark and marks of writing direction).
_ESCAPES = {
    code: f"\\u{code:04x}"
    for first, last in (
        (0x00, 0x1F),
        (0x7F, 0x9F),
        (0x200E, 0x200F),
        (0x2028, 0x202E),
        (0x2066, 0x2069),
        (0xFEFF, 0xFEFF),
        (0xFFFE, 0xFFFF),
    )
    for code in range(first, last + 1)
} | {ord(c): "\\" + e for c, e in zip('\b\t\n\f\r"\\', 'btnfr"\\', strict=True)}


def part_of(value: object, path: Path) -> object:
    """A part of a value, or of a text for a list or mapping; MISSING if it does not exist.

    If the path is deeper than the value, as for the `type` of a section given as a text, the value
    itself is returned.
    """
    part = parsed(value) if path and isinstance(value, PlainScalar) else value
    for key in path:
        listed = isinstance(part, list | tuple) and isinstance(key, int)
        if not listed and not isinstance(part, Mapping):
            return value
        part = item_at(cast(object, part), key)
    return part


def shown_part(value: object, error: Invalid) -> str:
    """Format the part of a value that an error concerns; `***` for a possible secret."""
    part = part_of(value, error.at)
    return "***" if error.secret else for_error(None if part is MISSING else part)


def problem_of(part: Invalid, path: Path, value: object, origin: str) -> Problem:
    """The problem of one part of a value at a path."""
    return Problem(
        dotted((*path, *part.at)),
        part.message,
        valid=part.valid,
        hint=part.hint,
        kind=part.kind,
        value=shown_part(value, part),
        origin=origin,
    )


def for_error(value: object, limit: int | None = MAX_LENGTH, level: int = 0) -> str:
    """Format a value for an error or a report: quoted text in quotes, other objects by their type.

    Arguments:
        limit: the maximum number of characters; None for a value of a configuration at full length.
        level: the depth in lists and mappings, which may contain themselves.
    """
    items = None if limit is None else MAX_ITEMS
    if isinstance(value, PlainScalar):
        text = str(value) if value and value.isprintable() else repr(str(value))
    elif value is None:
        text = "null"
    elif isinstance(value, bool):
        text = str(value).lower()
    elif is_own(value):  # also a size, which is a number
        return for_error(cast(Any, value).dump(), limit)
    elif isinstance(value, str):
        text = repr(str(value))
    elif isinstance(value, int) and value.bit_length() > MAX_BITS:
        text = f"a number of {value.bit_length()} bits"
    elif isinstance(value, int | float):
        text = repr(value)
    elif isinstance(value, list | tuple | Mapping) and level == MAX_LEVELS and limit is not None:
        text = "..."
    elif isinstance(value, list | tuple):
        entries = islice(cast(Sequence[object], value), items)
        text = f"[{', '.join(for_error(item, limit, level + 1) for item in entries)}]"
    elif isinstance(value, Mapping):
        pairs = islice(cast(Mapping[object, object], value).items(), items)
        entries = (f"{key}: {for_error(item, limit, level + 1)}" for key, item in pairs)
        text = f"{{{', '.join(entries)}}}"
    elif level and hasattr(type(value), "__setpoint_written__"):
        return for_error(cast(Any, value).__setpoint_written__(), limit, level)
    elif limit is None and hasattr(type(value), "__setpoint__"):
        tag: str | None = cast(Any, type(value)).__setpoint__.tag
        text = "(a section)" if tag is None else repr(tag)
    elif limit is None and isinstance(value, Enum):
        text = repr(member_text(value))
    elif isinstance(value, re.Pattern):
        text = repr(cast(Any, value).pattern)
    elif type(value).__module__.partition(".")[0] == "pathlib":
        text = repr(str(value))
    elif isinstance(value, type):
        text = f"the class {value.__name__}"
    elif isinstance(value, FunctionType | BuiltinFunctionType):
        text = f"the function {value.__name__}"
    else:
        text = " ".join(repr(value).split())
        kind, name = type(value).__name__.lower(), text.lower().partition("(")[0]
        if not name or not (kind in name or name in kind):
            text = f"{type(value).__name__} {text}"
    if limit is None:
        return text
    text = hide_secrets(text)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def in_full(value: object) -> str:
    """Format a value in full on one line: `0.001`, `'fp32'`, `[0.9, 0.95]`, a section's type."""
    return for_error(value, None)


def for_flag(value: object) -> str:
    """Format a value for a flag, an environment variable or a text with references."""
    return str(value) if isinstance(value, str) else _flow(value, ": ", bare=True)


def for_shell(value: object) -> str:
    """Format a value for a shell, in double quotes if it contains spaces, else by `shlex`."""
    text = for_flag(value)
    if text and SHELL.issuperset(text):
        return text
    if " " in text and SHELL.issuperset(text.replace(" ", "")):
        return f'"{text}"'
    import shlex

    return shlex.quote(text)


def for_file(value: object, assign: str = ": ") -> str:
    """Format a value on one line of a file; `assign` separates keys and values, ` = ` in TOML."""
    return _flow(value, assign, bare=False)


def _flow(value: object, assign: str, bare: bool) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if is_own(value):
        return _flow(cast(Any, value).dump(), assign, bare)
    if isinstance(value, Enum):
        return member_text(value)
    if isinstance(value, PlainScalar):
        return str(value)
    if isinstance(value, str):
        plain = bare and value and (SHELL - {",", ":"}).issuperset(value)
        return value if plain else quoted(value)
    if isinstance(value, list | tuple):
        items = (_flow(item, assign, bare) for item in cast(Sequence[object], value))
        return f"[{', '.join(items)}]"
    if isinstance(value, Mapping):
        pairs = cast(Mapping[str, object], value).items()
        entries = (f"{key}{assign}{_flow(item, assign, bare)}" for key, item in pairs)
        return f"{{{', '.join(entries)}}}"
    return str(value)


def quoted(text: str) -> str:
    """Quote a text for JSON, TOML and YAML 1.2, on one line."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'  # nearly every text, and ten times as fast
    return f'"{text.translate(_ESCAPES)}"'


def parsed(text: PlainScalar) -> object:
    """Parse text from the command line as a list or mapping."""
    try:
        return parse_flow(text) if text.startswith("{") else parse_list(text)
    except Invalid:
        return text


def parse_flow(text: str) -> object:
    """Read a list, a mapping or a scalar, such as `{rank: 8, targets: [q, v]}`.

    Raises:
        Invalid: the text is not well formed; states the position.
    """
    reader = _Reader(str(text))
    value = reader.value(0)
    if reader.peek():
        raise reader.fail("unexpected text after the value")
    return value


def parse_list(text: str) -> list[object]:
    """Read the items of a list, `[1, 2]` or `1,2`; the empty text has none.

    Raises:
        Invalid: the text is not well formed.
    """
    stripped = str(text).strip()
    bracketed = stripped if stripped.startswith("[") else f"[{stripped}]"
    return cast(list[object], parse_flow(bracketed))


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.offset = 0

    def fail(self, message: str) -> Invalid:
        # The report shows the text, unless it may contain a secret.
        return Invalid(f"cannot be read at position {self.offset + 1}: {message}")

    def peek(self) -> str:
        while self.offset < len(self.text) and self.text[self.offset].isspace():
            self.offset += 1
        return self.text[self.offset] if self.offset < len(self.text) else ""

    def value(self, depth: int) -> object:
        if depth > DEPTH:
            raise self.fail(f"nested deeper than {DEPTH} levels")
        start = self.peek()
        if start == "[":
            return [self.value(depth + 1) for _ in self.entries("list", "]")]
        if start != "{":
            return self.scalar(ENDS)
        mapping: dict[str, object] = {}
        for _ in self.entries("mapping", "}"):
            key = str(self.scalar(ENDS + ":="))
            if self.peek() not in (":", "="):
                raise self.fail("expected = or : after the key")
            self.offset += 1
            if key in mapping:
                raise self.fail("a key is given twice")
            mapping[key] = self.value(depth + 1)
        return mapping

    def entries(self, kind: str, closing: str) -> Iterator[None]:
        """Iterate over the entries of a list or mapping, which the caller reads."""
        self.offset += 1
        while self.peek() != closing:
            if not self.peek():
                raise self.fail(f"the {kind} is not closed by {closing}")
            yield
            if self.peek() == ",":
                self.offset += 1
            elif self.peek() not in (closing, ""):
                raise self.fail(f"expected , or {closing}")
        self.offset += 1

    def scalar(self, ends: str) -> object:
        start = self.peek()
        if start and start in "\"'":
            return self.quoted(start)
        begin = self.offset
        while self.offset < len(self.text) and self.text[self.offset] not in ends:
            # A reference may contain any of the closing characters.
            if self.text.startswith("${", self.offset):
                end = self.text.find("}", self.offset)
                if end < 0:
                    raise self.fail("the reference is not closed by }")
                self.offset = end
            self.offset += 1
        word = self.text[begin : self.offset].strip()
        if not word:
            raise self.fail("expected a value")
        return PlainScalar(word)

    def quoted(self, quote: str) -> str:
        pattern = _DOUBLE_QUOTED if quote == '"' else r"'([^']*+)'"
        match = re.compile(pattern, re.DOTALL).match(self.text, self.offset)
        if match is None:
            raise self.fail(f"the text is not closed by {quote}")
        value: str = match[1]
        if quote == '"' and "\\" in value:
            import json

            try:
                value = json.loads(match[0], strict=False)
            except json.JSONDecodeError as error:
                self.offset += error.pos
                raise self.fail(error.msg.lower()) from None
            if not is_text(value):
                raise self.fail("half a surrogate pair is not a character")
        self.offset = match.end()
        return value
