"""Plain data: as JSON can hold it, and whether two pieces of it are the same configuration."""

from __future__ import annotations

from typing import Any, cast


def json_value(value: Any) -> Any:
    """A plain value as JSON can hold it.

    Arguments:
        value: a leaf's value.

    Returns:
        the value, with infinities as the texts that a number's type reads back.
    """
    # JSON has no infinities, and json.dumps would write them as words that no reader takes.
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, list):
        return [json_value(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, dict):
        return {key: json_value(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    return value


def same(left: Any, right: Any) -> bool:
    """Whether two plain values are the same configuration.

    Arguments:
        left, right: plain values.

    Returns:
        True if kind and value are equal.
    """
    # True equals 1 in Python, and 1 equals 1.0; in a configuration they are different values.
    if isinstance(left, list) and isinstance(right, list):
        ours, theirs = cast(list[Any], left), cast(list[Any], right)
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(left, dict) and isinstance(right, dict):
        here, there = cast(dict[str, Any], left), cast(dict[str, Any], right)
        return here.keys() == there.keys() and all(same(here[k], there[k]) for k in here)
    return type(cast(object, left)) is type(cast(object, right)) and left == right
