"""Writing JSON that people can read."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from ..words.texts import MAX_DEPTH
from .write_common import SCALARS, WIDTH, Unplain, plain_data, quoted_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_STEP = "  "


def write_json(
    data: Mapping[str, object], comments: Mapping[tuple[str | int, ...], str] | None = None
) -> str:
    """Write data as JSON, two spaces a level, with lists of scalars on one line where they fit.

    Infinities and NaN, which JSON has not, become the text `"inf"`, `"-inf"` or `"nan"`.

    Arguments:
        comments: taken like those of the other writers and left out, since JSON has none.

    Raises:
        SetpointError: a value that no file can hold.
    """
    del comments
    try:
        return _container(data, "") + "\n"
    except Unplain:
        return _container(plain_data(data), "") + "\n"


def _container(value: Any, indent: str) -> str:
    if len(indent) >= _DEEPEST:
        raise Unplain
    inner = indent + _STEP
    cls: type = value.__class__
    if cls is dict:
        items: list[str] = []
        for key, item in value.items():
            if key.__class__ is not str:
                raise Unplain
            write = _WRITE.get(item.__class__)
            text = _container(item, inner) if write is None else write(item)
            items.append(f"{inner}{_key(key)}: {text}")
        opening, closing = "{", "}"
    elif cls is list or cls is tuple:
        items, deep = [], False
        for item in value:
            write = _WRITE.get(item.__class__)
            deep = deep or write is None
            items.append(_container(item, inner) if write is None else write(item))
        if not deep:
            flat = f"[{', '.join(items)}]"
            if len(indent) + len(flat) <= WIDTH:
                return flat
        items = [inner + item for item in items]
        opening, closing = "[", "]"
    else:
        raise Unplain
    body = ",\n".join(items)
    return f"{opening}\n{body}\n{indent}{closing}" if body else opening + closing


def _float(value: float) -> str:
    text = repr(value)
    return f'"{text}"' if text[-1].isalpha() else text  # inf, -inf, nan


def _null(value: None) -> str:
    return "null"


_key = lru_cache(4096)(quoted_text)  # sections of one class repeat the names of their fields
_WRITE: dict[type, Callable[[Any], str]] = {**SCALARS, float: _float, type(None): _null}
_DEEPEST = MAX_DEPTH * len(_STEP)
