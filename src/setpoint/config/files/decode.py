"""From the bytes of a file to its text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .error import FileError
from .limits import HALF_PAIR, MAX_BYTES, is_text, too_large

if TYPE_CHECKING:
    from .document import Format


def decode(data: bytes, format: Format, name: str) -> str:
    """Decode UTF-8, with or without a byte order mark.

    Arguments:
        data: the whole file.
        format: what it is to be read as, which says how large it may be.
        name: the file as it is shown to people.

    Returns:
        the text, without the byte order mark; line ends stay as they are.

    Raises:
        FileError: too many bytes, or bytes that are not UTF-8.
    """
    if len(data) > MAX_BYTES[format]:
        raise FileError(name, None, None, too_large(len(data), format))
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        start = error.start
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        message = "the file is UTF-16; save it as UTF-8"
        raise FileError(name, 1, 1, message)
    line_start = data.rfind(b"\n", 0, start) + 1
    column = len(data[line_start:start].decode("utf-8").removeprefix("\ufeff")) + 1
    message = f"the byte 0x{data[start]:02x} at offset {start} is not UTF-8; save the file as UTF-8"
    raise FileError(name, data.count(b"\n", 0, start) + 1, column, message)


def check_text(text: str, format: Format, name: str) -> str:
    """Hold a text that did not come from bytes to the same rules.

    Arguments:
        text: the whole text.
        format: what it is to be read as, which says how large it may be.
        name: the source as it is shown to people.

    Returns:
        the text, without a byte order mark.

    Raises:
        FileError: too long, or it holds what UTF-8 cannot.
    """
    if not is_text(text):
        raise FileError(name, None, None, HALF_PAIR)
    # A character takes one to four bytes, so most texts need no counting.
    limit = MAX_BYTES[format]
    if len(text) * 4 > limit and len(text.encode()) > limit:
        raise FileError(name, None, None, too_large(len(text.encode()), format))
    return text.removeprefix("\ufeff")
