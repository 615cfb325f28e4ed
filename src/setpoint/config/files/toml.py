"""Reading TOML: the values by the standard library, positions by `toml_scan`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .document import Document, Place, is_list, is_mapping
from .error import FileError
from .limits import MAX_DEPTH, TOO_DEEP, has_long_number

if TYPE_CHECKING:
    Path = tuple[str | int, ...]

# By name, so that `datetime` need not be imported to ask.
_REFUSED = {"date": "date", "datetime": "date with a time", "time": "time of day"}


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
        data = tomllib.loads(text)
    except ValueError as error:
        from .toml_errors import explain

        raise explain(text, name, str(error)) from None
    document = Document(name, "toml", data, text, scan)
    _check(document, data, (), 1)
    return document


def _may_be_extreme(text: str) -> bool:
    """A cheap test that no ordinary file fails, before the exact one."""
    if text.count("[") + text.count("{") > MAX_DEPTH or has_long_number(text):
        return True
    dots = text.count(".") > MAX_DEPTH
    return dots and any(line.count(".") >= MAX_DEPTH for line in text.split("\n"))


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
        kind = _REFUSED[type(value).__name__]
        raise _error(document, path, f"a {kind} is not a type that fields have; put it in quotes")


def _error(document: Document, path: Path, message: str) -> FileError:
    line, column = document.locate(path) or (1, 1)
    return FileError(document.name, line, column, message)
