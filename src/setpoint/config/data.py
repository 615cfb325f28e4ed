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
    """Whether two values are the same configuration.

    Arguments:
        left, right: plain or stored values.

    Returns:
        True if they are equal, and numbers and truth values of one kind.
    """
    # True equals 1 in Python, and 1 equals 1.0; in a configuration they are different values.
    for kind in (list, tuple):
        if isinstance(left, kind) and isinstance(right, kind):
            ours, theirs = cast(list[Any], left), cast(list[Any], right)
            return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(left, dict) and isinstance(right, dict):
        here, there = cast(dict[str, Any], left), cast(dict[str, Any], right)
        return here.keys() == there.keys() and all(same(here[k], there[k]) for k in here)
    if isinstance(left, int | float) and isinstance(right, int | float):
        return type(left) is type(right) and left == right
    return bool(left == right)
