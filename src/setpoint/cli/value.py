"""Values of a configuration as text for people and as JSON for machines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from setpoint.config import Config, to_plain

PLAIN = frozenset((bool, int, str))


def plain(value: object) -> Any:
    """A stored value in plain data that JSON can hold.

    Returns:
        None, bool, int, float, str, list or dict; infinities as texts.
    """
    if value is None or value.__class__ in PLAIN:
        return value
    if isinstance(value, Config):
        return plain(to_plain(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return str(value)
    dump = getattr(value, "dump", None)
    if callable(dump):  # also of a size, which is a number
        return plain(dump())
    if isinstance(value, bool | int | float | str):
        return value
    return getattr(value, "pattern", None) or str(value)


def value_text(value: object) -> str:
    """A stored value on one line, as errors write it, at full length.

    Returns:
        for instance `0.001`, `'fp32'`, `[0.9, 0.95]`, `true` or `null`.
    """
    if isinstance(value, Config):
        tag = type(value).__setpoint__.tag
        return "(a section)" if tag is None else repr(tag)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {value_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(value_text, value)) + "]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float) and not hasattr(value, "dump"):
        return repr(value)
    if isinstance(value, str):
        return repr(str(value))
    return value_text(plain(value))
