"""Nested values taken apart into named tensors and JSON, and put together again."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from setpoint.shapes.placed import Named

_TENSOR = "$tensor"
_TUPLE = "$tuple"


def split_tensors(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Move the tensors of a nested value to a flat dict.

    Arguments:
        value: tensors, None, bool, int, float, str; lists, tuples and dicts of these.
        name: of the value; the tensors inside it are named `<name>/<key>/...`.
        tensors: filled with what is found; the tensors are not copied.

    Raises:
        TypeError: for anything else, naming it.
    """
    if isinstance(value, Tensor):
        tensors[name] = value
        return {_TENSOR: name}
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str) or key in (_TENSOR, _TUPLE):
                raise TypeError(f"{name} has the key {key!r}, which cannot be saved")
        return {key: split_tensors(item, f"{name}/{key}", tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [split_tensors(item, f"{name}/{i}", tensors) for i, item in enumerate(value)]
        return {_TUPLE: items} if isinstance(value, tuple) else items
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{name} is a {type(value).__name__}, which cannot be saved")


def join_tensors(value: Any, tensors: Named) -> Any:
    """Undo `split_tensors`.

    Returns:
        the value; its tensors are copies.

    Raises:
        KeyError: if a tensor is not there.
    """
    if isinstance(value, dict):
        if _TENSOR in value:
            found = tensors[value[_TENSOR]]
            return found.clone() if isinstance(found, Tensor) else found
        if _TUPLE in value:
            return tuple(join_tensors(item, tensors) for item in value[_TUPLE])
        return {key: join_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, list):
        return [join_tensors(item, tensors) for item in value]
    return value
