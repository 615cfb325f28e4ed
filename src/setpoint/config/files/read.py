"""Reading one configuration file, whatever its format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .decode import check_text, decode
from .document import Document
from .error import FileError
from .limits import MAX_BYTES, too_large
from .opening import read_plain_file

if TYPE_CHECKING:
    from .document import Format

FORMATS: dict[str, Format] = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".json": "json"}

_MAX_LISTED = 10_000  # names of a directory that are looked at for a suggestion


def read(path: str) -> Document:
    """Read a file; its suffix says the format.

    Arguments:
        path: the file; the errors show it as given here.

    Returns:
        the document.

    Raises:
        FileError: it is not there, not a file, not readable, or not what its suffix says.
    """
    import os

    format = FORMATS.get(os.path.splitext(path)[1].lower())
    if format is None:
        message = f"expected a file that ends in {', '.join(FORMATS)}"
        if path.startswith(("/dev/", "/proc/")):
            message += "; --config-from-stdin reads standard input"
        raise FileError(path, None, None, message)
    data = read_plain_file(path, MAX_BYTES[format], lambda size: too_large(size, format), _missing)
    return _parse(decode(data, format, path), format, path)


def parse_bytes(data: bytes, format: Format, name: str) -> Document:
    """Read what came from elsewhere than a file, standard input for instance.

    Arguments:
        data: all of it.
        format: `"toml"`, `"yaml"` or `"json"`.
        name: what errors call it.

    Returns:
        the document.

    Raises:
        FileError: it is not UTF-8 or not of that format, or breaks one of the limits.
    """
    return _parse(decode(data, format, name), format, name)


def parse(text: str, format: Format, name: str) -> Document:
    """Read a text that does not come from a file.

    Arguments:
        text: the whole text.
        format: `"toml"`, `"yaml"` or `"json"`.
        name: what errors call it.

    Returns:
        the document.

    Raises:
        FileError: the text is not of that format, or breaks one of the limits.
    """
    return _parse(check_text(text, format, name), format, name)


def _parse(text: str, format: Format, name: str) -> Document:
    # Each format's reader is imported when a file of that format is read.
    if format == "toml":
        from .toml import parse_toml

        return parse_toml(text, name)
    if format == "yaml":
        from .yaml import parse_yaml

        return parse_yaml(text, name)
    from .json import parse_json

    return parse_json(text, name)


def _missing(path: str) -> str:
    """Why there is no such file, and the nearest name that there is."""
    import difflib
    import os
    from itertools import islice

    folder, wanted = os.path.split(path)
    if os.path.islink(path):
        return f"no such file: it is a link to '{os.readlink(path)}', where there is nothing"
    try:
        with os.scandir(folder or ".") as entries:
            names = [entry.name for entry in islice(entries, _MAX_LISTED)]
    except OSError:
        return f"no such file; there is no directory '{folder}'"
    # Names with other suffixes could not be read anyway.
    names = [name for name in names if os.path.splitext(name)[1].lower() in FORMATS]
    near = difflib.get_close_matches(wanted, sorted(names), n=1)
    return (
        f"no such file; did you mean '{os.path.join(folder, near[0])}'?" if near else "no such file"
    )
