"""Reading TOML: the values by the standard library, positions by `toml_scan`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .document import Document, Place, is_list, is_mapping
from .error import FileError
from .limits import MAX_DEPTH, MAX_NODES, TOO_BIG, TOO_DEEP, has_long_number

if TYPE_CHECKING:
    Path = tuple[str | int, ...]

# By name, so that `datetime` need not be imported to ask.
_REFUSED = {
    name: f"a {kind} is not a type that fields have; put it in quotes"
    for name, kind in (
        ("date", "date"),
        ("datetime", "date with a time"),
        ("time", "time of day"),
    )
}


class _TooBig(float):
    """A number that was not written as infinite, and would become so unseen."""


_REFUSED[_TooBig.__name__] = f"the number {TOO_BIG}"


def parse_toml(text: str, name: str) -> Document:
    """Read TOML 1.0; dates and times are refused, since no field takes them.

    Arguments:
        text: the file, without a byte order mark.
        name: the file as it is shown to people.

    Returns:
        the document; empty text is an empty mapping.

    Raises:
        FileError: the text is not TOML, or breaks one of the limits.
    """
    import tomllib

    def scan() -> Place:
        from .toml_scan import scan_toml

        return scan_toml(text)[0]

    if _may_be_extreme(text):
        from .toml_tokens import refuse_extremes

        refuse_extremes(text, name)
    try:
        data = tomllib.loads(text, parse_float=_float)
    except ValueError as error:
        from .toml_errors import explain

        raise explain(text, name, str(error)) from None
    document = Document(name, "toml", data, text, scan)
    _check(document, data, (), 1)
    return document


def _may_be_extreme(text: str) -> bool:
    """A cheap test that no ordinary file fails, before the exact one."""
    opening, dots = text.count("[") + text.count("{"), text.count(".")
    # Twice the brackets: an item follows each, and each may itself be one.
    nodes = 2 * opening + 2 * text.count("=") + text.count(",") + dots
    if opening > MAX_DEPTH or nodes > MAX_NODES["toml"] or has_long_number(text):
        return True
    return dots > MAX_DEPTH and any(line.count(".") >= MAX_DEPTH for line in text.split("\n"))


def _float(literal: str) -> float:
    number = float(literal)
    return _TooBig(number) if abs(number) == float("inf") and "inf" not in literal else number


def _check(document: Document, value: object, path: Path, depth: int) -> None:
    """Refuse values that no field takes, and nesting that headers and dotted keys add up to."""
    if depth > MAX_DEPTH and isinstance(value, (dict, list)):
        raise _error(document, path, TOO_DEEP)
    if is_mapping(value):
        for key, item in value.items():
            _check(document, item, (*path, key), depth + 1)
    elif is_list(value):
        for index, item in enumerate(value):
            _check(document, item, (*path, index), depth + 1)
    elif type(value).__name__ in _REFUSED:
        raise _error(document, path, _REFUSED[type(value).__name__])


def _error(document: Document, path: Path, message: str) -> FileError:
    line, column = document.locate(path) or (1, 1)
    return FileError(document.name, line, column, message)
