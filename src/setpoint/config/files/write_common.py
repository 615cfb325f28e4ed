"""What the three writers share: the data they take, quoted text, and comments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..words.errors import SetpointError
from ..words.texts import HALF_PAIR, MAX_DEPTH, MAX_DIGITS, TOO_DEEP, is_text

WIDTH = 100  # columns; a longer list is written over several lines
_MAX_BITS = 14_284  # every number of so few bits has at most MAX_DIGITS digits
# One way of quoting that JSON, TOML and YAML all read. Escaped are what one of them forbids
# (control characters, non-characters), what breaks lines, and what would make a line look like
# another (the byte order mark and the marks that turn the direction of writing).
_ESCAPES = {
    code: f"\\u{code:04x}"
    for first, last in (
        (0x00, 0x1F),
        (0x7F, 0x9F),
        (0x200E, 0x200F),
        (0x2028, 0x202E),
        (0x2066, 0x2069),
        (0xFEFF, 0xFEFF),
        (0xFFFE, 0xFFFF),
    )
    for code in range(first, last + 1)
} | {ord(c): "\\" + e for c, e in zip('\b\t\n\f\r"\\', 'btnfr"\\', strict=True)}

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Path = tuple[str | int, ...]


def quoted(text: str) -> str:
    """A text in double quotes.

    Arguments:
        text: any text that `plain_data` let pass.

    Returns:
        one line that JSON, TOML and YAML 1.2 read as that text.
    """
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'  # nearly every text, and ten times as fast
    return f'"{text.translate(_ESCAPES)}"'


class Unplain(Exception):
    """A value that `plain_data` has to see: one to be refused, or of a class derived from str."""


def quoted_text(text: str) -> str:
    """A text in double quotes, or `Unplain` for one that no file can hold."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    if not is_text(text):
        raise Unplain
    return quoted(text)


def _digits(value: int) -> str:
    if value.bit_length() > _MAX_BITS:
        raise Unplain
    return repr(value)


def _truth(value: bool) -> str:
    return "true" if value else "false"


# How the scalars that are written alike in JSON and TOML are written, by their exact class.
SCALARS: dict[type, Callable[[Any], str]] = {
    str: quoted_text,
    int: _digits,
    bool: _truth,
    float: repr,
}


def remark(comments: list[str]) -> str:
    """Comments as they stand at the end of a line.

    Arguments:
        comments: texts, in order; line breaks and what cannot be printed become spaces. What is
            said twice is written once.

    Returns:
        `"  # one; two"`, or the empty string if nothing is left to say.
    """
    cleaned = ["".join(c if c.isprintable() else " " for c in text) for text in comments]
    texts = dict.fromkeys(" ".join(words.split()) for words in cleaned)
    text = "; ".join(filter(None, texts))
    return f"  # {text}" if text else ""


def plain_data(data: Mapping[str, object]) -> dict[str, object]:
    """Hold what is to be written to what files can hold, so that the writers need not ask again.

    Arguments:
        data: the top level mapping; below it dicts, lists, tuples, text, numbers, bools and None.

    Raises:
        SetpointError: a value or key that no file can hold, named with its path.
    """
    return _mapping(data, ())


def _mapping(data: Mapping[Any, object], path: Path) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in data.items():
        if not isinstance(key, str):
            raise _refusal(path, f"the key {key!r} is not text")
        if not is_text(key):
            raise _refusal(path, HALF_PAIR)
        result[str.__str__(key)] = _value(value, (*path, key))
    return result


def _value(value: Any, path: Path) -> object:
    # Subclasses (enums, numpy's float64) have a `repr` of their own, which is not to be written.
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if not is_text(value):
            raise _refusal(path, HALF_PAIR)
        return str.__str__(value)
    if isinstance(value, int):
        if value.bit_length() > _MAX_BITS:
            raise _refusal(path, f"a number of more than {MAX_DIGITS} digits cannot be written")
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, (dict, list, tuple)):
        if len(path) >= MAX_DEPTH:
            raise _refusal(path, TOO_DEEP)
        if isinstance(value, dict):
            return _mapping(value, path)  # pyright: ignore[reportUnknownArgumentType]
        items: list[object] = list(value)  # pyright: ignore[reportUnknownArgumentType]
        return [_value(item, (*path, index)) for index, item in enumerate(items)]
    raise _refusal(path, f"a {type(value).__name__} cannot be written")


def _refusal(path: Path, message: str) -> SetpointError:
    shown = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in shown[:200]).lstrip(".")
    return SetpointError(f"{shown}: {message}" if shown else message)
