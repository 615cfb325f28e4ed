"""One value that one point of a sweep gives to one axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from setpoint.config import SWEEP, Flag, Origin, Path, PlainScalar, guess

SOURCE, WITH = "source", "with"
"""The axes that are no fields: over presets and files, and over modifiers."""


class Setting:
    """What a point sets.

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
"""What one point sets, in the order of the axes."""


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
    if isinstance(value, PlainScalar):
        return plain_value(guess(value))
    if isinstance(value, Mapping):
        entries = cast(Mapping[object, object], value)
        return {str(key): plain_value(item) for key, item in entries.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in cast(list[object], value)]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value
