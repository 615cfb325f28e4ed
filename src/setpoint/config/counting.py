"""How many values lie inside a value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast


def count_values(value: object, most: int) -> int:
    """Count the values in lists and mappings inside one another, each time that one is met.

    Arguments:
        value: the outermost.
        most: where to stop, since what is repeated inside itself may hold more than can be counted.

    Returns:
        the number, the value itself included; no more than `most` and what lies directly beside.
    """
    found = 1
    waiting = [value]
    while waiting and found <= most:
        inner = waiting.pop()
        if isinstance(inner, Mapping):
            inner = cast(Mapping[object, object], inner).values()
        elif not isinstance(inner, list | tuple):
            continue
        items = list(cast(Iterable[object], inner))
        found += len(items)
        waiting.extend(items)
    return found
