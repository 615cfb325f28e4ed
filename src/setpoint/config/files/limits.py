"""What a file may hold at most, whatever its format, so that no file can exhaust the reader."""

from __future__ import annotations

MAX_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 64  # mappings and lists inside one another, the file itself being the first
MAX_DIGITS = 4300  # the bound of Python itself, which a user may have lifted
MAX_NODES = 100_000  # of a YAML file, aliases written out

# The messages are shared by the readers, so that the same mistake reads the same everywhere.
TOO_LARGE = "the file holds {} bytes; at most 16 MiB are read"
TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
TOO_LONG = f"a number of {{}} digits is refused; at most {MAX_DIGITS} are read"
HALF_PAIR = "the text holds half a surrogate pair, which is no character"


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
