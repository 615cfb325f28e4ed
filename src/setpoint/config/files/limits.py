"""What a file may hold at most, whatever its format, so that no file can exhaust the reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .document import Format

MIB = 1024 * 1024
# With these, the largest file of each format is read within 10 seconds of processor time and 512
# MiB. JSON has a faster reader, and is what records are written in.
MAX_BYTES: dict[Format, int] = {"toml": 2 * MIB, "yaml": 2 * MIB, "json": 16 * MIB}
MAX_NODES: dict[Format, int] = {"toml": 100_000, "yaml": 100_000, "json": 500_000}
MAX_DEPTH = 64  # mappings and lists inside one another, the file itself being the first
MAX_DIGITS = 4300  # the bound of Python itself, which a user may have lifted
MAX_FILES = 256  # of one configuration, with all that they extend
MAX_NESTING = 16  # files that extend one another
MAX_COPIED = 100_000  # values that references to lists and mappings repeat

# The messages are shared by the readers, so that the same mistake reads the same everywhere.
TOO_MANY = "more than {} keys and values"
TOO_BIG = "is too large for a floating-point number"
TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
TOO_LONG = f"a number of {{}} digits is refused; at most {MAX_DIGITS} are read"
HALF_PAIR = "the text holds half a surrogate pair, which is no character"


# Bytes of a path and of each of its parts; Linux takes 4096, and something is put below it.
MAX_PATH = 4000
MAX_NAME = 255


def too_large(size: int, format: Format) -> str:
    """Why a file of so many bytes is not read.

    Arguments:
        size: its bytes.
        format: `"toml"`, `"yaml"` or `"json"`.

    Returns:
        a sentence that names the limit.
    """
    limit = f"at most {MAX_BYTES[format] // MIB} MiB of {format.upper()} are read"
    return f"the file holds {size} bytes; {limit}"


def has_long_number(text: str) -> bool:
    """Whether a run of digits is so long that converting it is refused; it may stand inside quotes.

    Arguments:
        text: the whole file.

    Returns:
        False means that no number of the file is too long; True, that one may be.
    """
    if len(text) <= MAX_DIGITS:
        return False
    import re

    # The look-behind starts a match at the head of a run only: linear in the length of the text.
    pattern = rf"(?<![0-9A-Fa-f_])[0-9A-Fa-f_]{{{MAX_DIGITS + 1}}}"
    return re.search(pattern, text) is not None


def is_text(value: str) -> bool:
    """Whether a string can be written to a file: half a surrogate pair cannot.

    Arguments:
        value: any string.

    Returns:
        True if every character is a Unicode scalar value.
    """
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def can_be_named(text: str) -> bool:
    """Whether the system can take a text: as the name of a file, a module, a user or a command.

    Arguments:
        text: as a layer gives it; bytes that are no UTF-8 stand in it as Python keeps them.

    Returns:
        False if it holds a zero byte, or what the file system's encoding cannot express.
    """
    if "\0" in text:
        return False
    if text.isascii():
        return True
    from os import fsencode

    try:
        fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def can_be_path(text: str) -> bool:
    """Whether a text can be the path of a file or folder on the systems that there are.

    Arguments:
        text: as a layer gives it.

    Returns:
        False if it cannot be named at all, or if it or a part of it is too long.
    """
    if not can_be_named(text):
        return False
    from os import fsencode

    data = fsencode(text)
    return len(data) < MAX_PATH and all(len(part) <= MAX_NAME for part in data.split(b"/"))
