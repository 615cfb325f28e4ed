"""Settings of the points of a sweep: values as written, separated by commas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self, cast

from setpoint.config import (
    SWEEP,
    Flag,
    Origin,
    Path,
    PlainScalar,
    Scalar,
    SetpointError,
    parse_flow,
    plain,
)

SOURCE, WITH = "source", "with"
"""The axes that are no fields: over presets and files, and over modifiers."""
CLOSING = {"[": "]", "{": "}", "(": ")"}
QUOTES = "\"'"


class Setting:
    """A value that a point gives to an axis.

    Arguments:
        path: the field, `("tag", NAME)`, `("with",)` or `("source",)`.
    """

    __slots__ = ("origin", "path", "value")

    def __init__(self, path: tuple[str, ...], value: object, origin: Origin) -> None:
        self.path = path
        self.value = value
        self.origin = origin

    @property
    def key(self) -> str:
        """The dotted path."""
        return ".".join(self.path)

    def flag(self) -> Flag:
        """The setting as an override, which is how it is put onto a draft."""
        # The text only says whether a variant is chosen; what is no text chooses none.
        text = self.value if isinstance(self.value, str) else "null"
        return Flag(self.path, text, self.key, self.origin, self.value)

    def plain(self) -> Any:
        """The value for machines."""
        return plain_value(self.value)


Point = tuple[Setting, ...]
"""The settings of one point, in the order of the axes."""


def path_of(text: str) -> tuple[str, ...]:
    """A dotted path in one spelling.

    Arguments:
        text: as written; hyphens and underscores are the same.

    Returns:
        the names; a path that ends in `type` is that of its section.
    """
    names = tuple(part.replace("-", "_") for part in text.split("."))
    return names[:-1] if len(names) > 1 and names[-1] == "type" else names


def axis_origin(name: str, find: Callable[[Path], str] | None = None) -> Origin:
    """The origin of the values of an axis.

    Arguments:
        find: finds its place in a file, given any path; None on the command line.

    Returns:
        an origin that reads `sweep axis NAME`.
    """
    return Origin(SWEEP, f"axis {name}", find)


def plain_value(value: object) -> Any:
    """A value of an axis for machines and for comparison.

    Returns:
        what JSON can hold; a text that reads as a number is that number.
    """
    if isinstance(value, str) and value == "null":
        return None  # quoted or not: TOML has no other way to write it
    if isinstance(value, Mapping):
        entries = cast(Mapping[object, object], value)
        return {str(key): plain_value(item) for key, item in entries.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in cast(list[object], value)]
    return plain(value)


class Raw(Scalar):
    """Any value of a file; the field that it is for decides what it means."""

    __setpoint_scalar__ = "a value for the field"
    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    @classmethod
    def read(cls, value: object) -> Self:
        """Take a value as it is."""
        return cls(value.value if isinstance(value, Raw) else value)

    def dump(self) -> Any:
        """The value in plain data."""
        return plain_value(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Raw) and repr(other) == repr(self)  # 1 is not 1.0

    __hash__ = Scalar.__hash__


def split_points(text: str) -> list[str]:
    """Split a text at the commas that stand outside everything.

    Returns:
        the parts, without space around them; the text as it is where nothing separates, or where
        brackets or quotes do not match, which its reader will say better.
    """
    parts: list[str] = []
    begin, at = 0, 0
    open_: list[str] = []
    before = ","  # the sign before this one, without spaces
    while at < len(text):
        sign = text[at]
        # A quote inside a word, as in `don't`, opens nothing.
        if sign in QUOTES and before in "[{(,=:":
            at = _closing_quote(text, at)
        elif sign in CLOSING:
            open_.append(CLOSING[sign])
        elif open_ and sign == open_[-1]:
            open_.pop()
        elif sign == "," and not open_:
            parts.append(text[begin:at].strip())
            begin = at + 1
        before = before if sign.isspace() else sign
        at += 1
    if open_ or not parts:
        return [text]
    return [*parts, text[begin:].strip()]


def point_value(part: str) -> str:
    """The value that a part stands for.

    Raises:
        SetpointError: if there is nothing.
    """
    if not part:
        raise SetpointError("empty value between commas")
    if len(part) > 1 and part[0] in QUOTES and part[-1] == part[0]:
        return str(parse_flow(part))
    return PlainScalar(part)


def _closing_quote(text: str, at: int) -> int:
    """The index of the end of a quote that begins at `at`; `at` if it never ends."""
    end = at + 1
    while end < len(text):
        if text[end] == "\\" and text[at] == '"':
            end += 1
        elif text[end] == text[at]:
            return end
        end += 1
    return at
