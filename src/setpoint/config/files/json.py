"""Reading JSON: values and errors from the standard library, positions from our own scan."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from functools import cache

from ..words.plain_data import (
    HALF_PAIR,
    INFINITIES,
    MAX_DEPTH,
    MAX_DIGITS,
    TOO_BIG,
    TOO_DEEP,
    TOO_LONG,
    is_text,
)
from .file_document import (
    FileDocument,
    FileError,
    FilePosition,
    error_at,
    is_mapping,
    twice,
    unexpected,
)

_TOKEN = r"""
    "(?:[^"\\]++|\\.)*+"
  | [\[\]{}:]
  | true | false | null | NaN | -?Infinity
  | -?[0-9]++ (?:\.[0-9]++)? (?:[eE][-+]?[0-9]++)?
    """


def parse_json(text: str, name: str) -> FileDocument:
    """Read JSON; duplicate keys, NaN, infinity and 1e999 are refused.

    Raises:
        FileError: the text is not JSON, or exceeds a limit.
    """
    start = len(text) - len(text.lstrip(" \t\r\n"))
    if start == len(text):
        return FileDocument(name, "json", {}, text, lambda: FilePosition(0))
    from json import JSONDecodeError

    try:
        data = _decoder()(text)
    except JSONDecodeError as error:
        raise unexpected(name, text, error.pos, error.msg.removesuffix(" at")) from None
    except (ValueError, RecursionError) as error:
        with suppress(ValueError, IndexError):  # the text may end in the middle
            scan_json(text, name)  # reports the same error with line and column
        raise FileError(name, None, None, f"not valid JSON: {error}") from None
    if "\\ud" in text or "\\uD" in text:  # half of a pair, perhaps
        scan_json(text, name)
    if not is_mapping(data):
        message = "expected '{': the top level is a mapping of keys to values"
        raise error_at(name, text, start, message)
    document = FileDocument(name, "json", data, text, lambda: scan_json(text, name))
    if text.count("[") + text.count("{") > MAX_DEPTH:
        document.check({}, data)
    return document


@cache
def _decoder() -> Callable[[str], object]:
    import json

    return json.JSONDecoder(
        object_pairs_hook=_unique, parse_constant=_finite, parse_float=_finite
    ).decode


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key is given twice")
    return result


def _finite(literal: str) -> float:
    number = float(literal)
    if number in INFINITIES or number != number:
        raise ValueError(f"{literal} {TOO_BIG}")
    return number


def scan_json(text: str, name: str) -> FilePosition:
    """Find the position of each key and list item of valid JSON.

    Raises:
        FileError: the JSON contains a duplicate key, a number that no field accepts, half a
            surrogate pair, or deep nesting.
    """
    import json

    root = FilePosition(0)
    # The mappings (True) and lists (False) around a token.
    open_: list[tuple[FilePosition, bool]] = []
    # The path of the next value; None if a key or an item comes next.
    value: FilePosition | None = root
    for match in re.finditer(_TOKEN, text, re.DOTALL | re.VERBOSE):
        token, offset = match[0], match.start()
        if token == ":":
            continue
        if token in ("]", "}"):
            open_.pop()
            continue
        if value is None:
            parent, is_object = open_[-1]
            if is_object:
                key: str = json.loads(token)
                if not is_text(key):
                    raise error_at(name, text, offset, HALF_PAIR)
                if key in parent.children:
                    raise twice(name, text, key, parent.children[key].offset, offset)
                value = parent.add(key, offset)
                continue
            value = parent.add(len(parent.children), offset)
        if token in ("[", "{"):
            if len(open_) == MAX_DEPTH:
                raise error_at(name, text, offset, TOO_DEEP)
            open_.append((value, token == "{"))
        elif token[0] == '"':
            if "\\" in token and not is_text(json.loads(token)):
                raise error_at(name, text, offset, HALF_PAIR)
        elif token not in ("true", "false", "null"):
            _check_number(token, name, text, offset)
        value = None
    return root


def _check_number(token: str, name: str, text: str, offset: int) -> None:
    digits = token.lstrip("-")
    if digits in ("NaN", "Infinity"):
        hint = "no field takes it" if digits == "NaN" else f'write "{token[:-5].lower()}" in quotes'
        raise error_at(name, text, offset, f"{token} is not JSON; {hint}")
    if digits.isdigit() and len(digits) > MAX_DIGITS:
        raise error_at(name, text, offset, TOO_LONG.format(len(digits)))
    if not digits.isdigit() and float(token) in INFINITIES:
        raise error_at(name, text, offset, f"the number {TOO_BIG}")
