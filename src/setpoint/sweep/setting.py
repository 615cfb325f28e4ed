"""Settings of the points of a sweep, and the names of points."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self, cast

from setpoint.config import Origin, SetpointError, plain
from setpoint.config.layers.flags import Flag
from setpoint.config.values.origin import SWEEP
from setpoint.config.values.scalar import Scalar
from setpoint.config.words.names import Path
from setpoint.config.words.plain_data import PlainScalar, guess
from setpoint.config.words.text import parse_flow, parsed

SOURCE, WITH = "source", "with"
"""Axes other than fields: presets and files, and modifiers."""
CLOSING = {"[": "]", "{": "}", "(": ")"}
QUOTES = "\"'"
MAX_NAME_LENGTH = 120
"""Characters of a name; file systems take 255 bytes."""
MAX_VALUE_LENGTH = 40
SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
BASE = "base"
"""The name of the point of a sweep that has no axes."""


class Setting:
    """The value of an axis in a point.

    Arguments:
        path: path of the field, `("tag", NAME)`, `("with",)` or `("source",)`.
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
        """Convert the setting to an override."""
        # The text only decides whether a variant is selected; a value that is no text selects none.
        text = self.value if isinstance(self.value, str) else "null"
        return Flag(self.path, text, self.key, self.origin, self.value)

    def plain(self) -> Any:
        """The value as plain data."""
        return plain_value(self.value)


Point = tuple[Setting, ...]
"""The settings of one point, in the order of the axes."""


def path_of(text: str) -> tuple[str, ...]:
    """Normalize a dotted path; one that ends in `type` means that of its section."""
    names = tuple(part.replace("-", "_") for part in text.split("."))
    return names[:-1] if len(names) > 1 and names[-1] == "type" else names


def axis_origin(name: str, find: Callable[[Path], str] | None = None) -> Origin:
    """The origin of the values of an axis, which reads `sweep axis NAME`."""
    return Origin(SWEEP, f"axis {name}", find)


def plain_value(value: object) -> Any:
    """Convert a value of an axis to JSON types, also for comparison."""
    if isinstance(value, str) and value == "null":
        return None  # quoted or not: TOML has no other notation
    if isinstance(value, Mapping):
        entries = cast(Mapping[object, object], value)
        return {str(key): plain_value(item) for key, item in entries.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in cast(list[object], value)]
    return plain(value)


class Raw(Scalar):
    """An unread value from a file; its field determines how it is read."""

    __setpoint_scalar__ = "a value for the field"
    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    @classmethod
    def read(cls, value: object) -> Self:
        """Return a value unchanged."""
        return cls(value.value if isinstance(value, Raw) else value)

    def dump(self) -> Any:
        """The value as plain data."""
        return plain_value(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Raw) and repr(other) == repr(self)  # 1 is not 1.0

    __hash__ = Scalar.__hash__


def split_points(text: str) -> list[str]:
    """Split a text at commas outside brackets and quotes.

    Returns:
        the parts, without surrounding spaces; the text unchanged if it has no separators, or
        unbalanced brackets or quotes, which its reader reports better.
    """
    parts: list[str] = []
    begin, index = 0, 0
    open_: list[str] = []
    before = ","  # the previous character, without spaces
    while index < len(text):
        character = text[index]
        # A quote inside a word, as in `don't`, opens no string.
        if character in QUOTES and before in "[{(,=:":
            index = _closing_quote(text, index)
        elif character in CLOSING:
            open_.append(CLOSING[character])
        elif open_ and character == open_[-1]:
            open_.pop()
        elif character == "," and not open_:
            parts.append(text[begin:index].strip())
            begin = index + 1
        before = before if character.isspace() else character
        index += 1
    if open_ or not parts:
        return [text]
    return [*parts, text[begin:].strip()]


def point_value(part: str) -> str:
    """The value of one part.

    Raises:
        SetpointError: the part is empty.
    """
    if not part:
        raise SetpointError("empty value between commas")
    if len(part) > 1 and part[0] in QUOTES and part[-1] == part[0]:
        return str(parse_flow(part))
    return PlainScalar(part)


def _closing_quote(text: str, start: int) -> int:
    """Index of the end of a quote that begins at `at`; `at` itself if it never ends."""
    end = start + 1
    while end < len(text):
        if text[end] == "\\" and text[start] == '"':
            end += 1
        elif text[end] == text[start]:
            return end
        end += 1
    return start


def labels(paths: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """The shortest unique endings of paths: `lr` for `optimizer.lr`, if no other ends in it."""
    every = list(dict.fromkeys(paths))
    return {path: _label(path, every) for path in every}


def _label(path: tuple[str, ...], every: list[tuple[str, ...]]) -> str:
    for length in range(1, len(path) + 1):
        ending = path[-length:]
        # An index alone is ambiguous.
        if ending[0].isdecimal():
            continue
        if sum(other[-length:] == ending for other in every) == 1:
            return _safe(".".join(ending))
    return _safe(".".join(path))


def name_of(point: Point, short: Mapping[tuple[str, ...], str]) -> str:
    """The name of a point, such as `lr=3e-4,seed=1`; a long one is shortened and ends in a hash.

    Equal values have equal names, and different ones different names.
    """
    name = ",".join(f"{short[item.path]}={value_text(item.value)}" for item in point)
    if len(name) <= MAX_NAME_LENGTH:
        return name or BASE
    return f"{name[: MAX_NAME_LENGTH - 9].rstrip('=,.')}~{_digest(name)}"


def value_text(value: object) -> str:
    """Format a value for a file name: a number, word or list as usual; other text with a hash."""
    if isinstance(value, PlainScalar) and value.startswith(("[", "{")):
        value = parsed(value)
    data: Any = plain_value(value)
    text = _plain_text(data)
    if text[:1].isdecimal() and "_" not in text:
        # `10 steps` becomes `10_steps`; a text with an underscore gets a hash.
        text = text.replace(" ", "_")
    if (
        _is_exact(value, data)
        and 0 < len(text) <= MAX_VALUE_LENGTH
        and all(character in SAFE or character == "+" for character in text)
    ):
        return text
    return (
        f"{_safe(text)[:MAX_VALUE_LENGTH].strip('_')}~{_digest(json.dumps(data, sort_keys=True))}"
    )


def _plain_text(data: Any) -> str:
    if isinstance(data, dict):
        entries = cast(dict[str, Any], data).items()
        words = [
            _plain_text(v) if key == "type" else f"{key}_{_plain_text(v)}" for key, v in entries
        ]
        return "_".join(words)
    if isinstance(data, list):
        items = [_plain_text(item) for item in cast(list[Any], data)]
        return "+".join(items) if len(items) > 1 else "+" + "".join(items)
    if data is None or isinstance(data, bool):
        return {None: "null", True: "true", False: "false"}[data]
    return number_text(data) if isinstance(data, float) else str(data)


def number_text(number: float) -> str:
    """Format a number in the shorter of its two notations, for example `0.1`, `3e-4`, `1e6`."""
    data = repr(number)
    if "e" not in data:
        exact = next((d for d in range(17) if float(f"{number:.{d}e}") == number), 17)
        digits, _, exponent = f"{number:.{exact}e}".partition("e")
        other = f"{digits}e{int(exponent)}"
        return other if len(other) < len(data) else data
    digits, _, exponent = data.partition("e")
    return f"{digits}e{int(exponent)}"


def _is_exact(value: object, data: Any) -> bool:
    """True if no other kind of value has the same text."""
    if isinstance(data, dict):
        return False
    if isinstance(data, list):
        items = cast(list[Any], data)
        return all(not isinstance(item, dict | list) and _is_exact(item, item) for item in items)
    if isinstance(data, str):
        quoted = not isinstance(value, PlainScalar)
        # An empty text would be invisible in a list.
        if not data or (data[:1].isdecimal() and "_" in data):
            return False
        reads_otherwise = quoted and not isinstance(guess(PlainScalar(data)), str)
        return "+" not in data and not reads_otherwise
    return True


def _safe(text: str) -> str:
    return "".join(character if character in SAFE else "_" for character in text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
