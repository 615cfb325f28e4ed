"""JSON that returns exactly what was given, or refuses to be written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def encode_state(state: Mapping[str, Any]) -> bytes:
    """Write a state as JSON.

    Floats are written with the digits that identify them; NaN and the infinities get the names that
    Python's reader knows.

    Arguments:
        state: None, bool, int, float, str, lists and dicts with texts as keys, nested at will.

    Returns:
        UTF-8 text that ends in a line break.

    Raises:
        TypeError: if JSON would return something else than was given, naming the place.
    """
    _check(state, "state")
    return (json.dumps(state, indent=1) + "\n").encode()


def decode_state(content: bytes | bytearray) -> dict[str, Any]:
    """Read what `encode_state` wrote.

    Raises:
        ValueError: if it is not JSON, or not a mapping.
    """
    try:
        state = json.loads(content)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(state, dict):
        raise ValueError("it holds no mapping")
    return state


def _check(value: Any, place: str) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            # JSON turns every key into a text without a word, so 1 would come back as "1".
            if not isinstance(key, str):
                raise TypeError(f"{place} has the key {key!r}; only texts are keys in JSON")
            _check(item, f"{place}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check(item, f"{place}[{index}]")
    elif value is not None and not isinstance(value, bool | int | float | str):
        raise TypeError(f"{place} is a {type(value).__name__}, which JSON would not return as one")
