"""Writing JSON that people can read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .document import is_list, is_mapping
from .write_common import WIDTH, plain_data, quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    return _lines(plain_data(data), "") + "\n"


def _lines(value: object, indent: str) -> str:
    inner = indent + _STEP
    if is_mapping(value) and value:
        items = [f"{quoted(key)}: {_lines(item, inner)}" for key, item in value.items()]
        return _block("{", items, "}", indent)
    if is_list(value) and value:
        items = [_lines(item, inner) for item in value]
        flat = f"[{', '.join(items)}]"
        if len(indent) + len(flat) <= WIDTH and not any(isinstance(i, (dict, list)) for i in value):
            return flat
        return _block("[", items, "]", indent)
    return _scalar(value)


def _block(opening: str, items: list[str], closing: str, indent: str) -> str:
    body = ",\n".join(indent + _STEP + item for item in items)
    return f"{opening}\n{body}\n{indent}{closing}"


def _scalar(value: object) -> str:
    if isinstance(value, str):
        return quoted(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if is_mapping(value) or is_list(value):  # an empty one
        return "{}" if is_mapping(value) else "[]"
    text = repr(value)
    return quoted(text) if text in ("inf", "-inf", "nan") else text
