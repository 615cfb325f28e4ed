"""Reading JSON: the values by the standard library, the errors and positions by `json_scan`."""

from __future__ import annotations

from .document import Document, Place, is_mapping
from .error import FileError, error_at
from .limits import MAX_DEPTH, MAX_NODES, TOO_BIG, TOO_DEEP, TOO_MANY, has_long_number


def parse_json(text: str, name: str) -> Document:
    """Read JSON; refused is what other readers let pass: keys given twice, NaN, infinity, 1e999.

    Arguments:
        text: the file, without a byte order mark.
        name: the file as it is shown to people.

    Returns:
        the document; empty text is an empty mapping.

    Raises:
        FileError: the text is not JSON, or breaks one of the limits.
    """
    import json

    def scan() -> Place:
        from .json_scan import scan_json

        return scan_json(text, name)

    if not text.strip(" \t\r\n"):
        return Document(name, "json", {}, text, lambda: Place(0))
    _refuse_extremes(text, name)
    # Half a surrogate pair, written as an escape, would make text that cannot be written again.
    if has_long_number(text) or "\\ud" in text or "\\uD" in text:
        scan()
    try:
        data: object = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite
        )
    except ValueError as error:
        scan()  # says the same with lines, columns and what was expected
        raise FileError(name, 1, 1, f"not valid JSON: {error}") from None
    if not is_mapping(data):
        offset = len(text) - len(text.lstrip(" \t\r\n"))
        raise error_at(
            name, text, offset, "expected '{': the top level is a mapping of keys to values"
        )
    return Document(name, "json", data, text, scan)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key is given twice")
    return result


def _no_constant(literal: str) -> object:
    raise ValueError(f"{literal} is not JSON")


def _finite(literal: str) -> float:
    number = float(literal)
    if abs(number) == float("inf"):
        raise ValueError(f"{literal} {TOO_BIG}")
    return number


def _refuse_extremes(text: str, name: str) -> None:
    """Refuse before parsing what would exhaust the stack of a recursive parser, or the memory."""
    opening = text.count("[") + text.count("{")
    most = MAX_NODES["json"]
    if opening <= MAX_DEPTH and opening + text.count(",") + text.count(":") <= most:
        return
    import re

    depth = nodes = 0
    for match in re.finditer(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}:,]', text, re.DOTALL):
        mark = match[0]
        if mark in ("]", "}"):
            depth -= 1
        elif mark[0] != '"':
            # Each key and each value follows one of these marks.
            nodes += 1
            depth += mark in ("[", "{")
        if depth > MAX_DEPTH:
            raise error_at(name, text, match.start(), TOO_DEEP)
        if nodes > most:
            raise error_at(name, text, match.start(), TOO_MANY.format(most))
