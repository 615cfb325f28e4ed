"""Texts before a field has read them, and the limits of what files and names may hold."""

from __future__ import annotations

from typing import Literal

from .credentials import credential_in
from .errors import Invalid, SetpointError

_BOOLEANS = {
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
_NOT_FINITE = {".inf", ".Inf", ".INF"}
_NAN = {".nan", ".NaN", ".NAN"}
_DIGITS = "0123456789"
OPENING = "${"
ESCAPED = "$${"
Format = Literal["toml", "yaml", "json"]
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


class PlainScalar(str):
    """A text that was written without quotes and is to be read by the type of its field.

    Arguments:
        text: the text as it stands in the file, the flag or the environment variable.
    """

    __slots__ = ()


def guess(text: PlainScalar) -> bool | int | float | str:
    """What a plain scalar means where no field gives it a type.

    Returns:
        a truth value, a whole number, a float, or the same text as a plain `str`.

    Raises:
        SetpointError: the text is a whole number of more than 4,300 digits, or a number beyond
            the largest float, which must not become infinite unseen.

    Source: the core schema of YAML 1.2.2, section 10.3.2; its nulls are taken by the reader.
    """
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    unsigned = text[1:] if text[:1] in ("+", "-") else text
    if unsigned in _NOT_FINITE:
        return float("-inf") if text[0] == "-" else float("inf")
    if text in _NAN:
        return float("nan")
    if text[:2] == "0x" and text[2:] and not text[2:].strip(_DIGITS + "abcdefABCDEF"):
        return _integer(text[2:], 16)
    if text[:2] == "0o" and text[2:] and not text[2:].strip("01234567"):
        return _integer(text[2:], 8)
    if unsigned and not unsigned.strip(_DIGITS):
        return _integer(text, 10)
    if not _is_float(unsigned):
        return str(text)
    number = float(text)
    if abs(number) == float("inf"):
        raise SetpointError(TOO_BIG)
    return number


def _integer(text: str, base: int) -> int:
    digits = len(text.lstrip("+-"))
    if digits > MAX_DIGITS:
        raise SetpointError(TOO_LONG.format(digits))
    return int(text, base)


def _is_float(unsigned: str) -> bool:
    """Whether the text is `digits[.digits][e[sign]digits]` or `.digits...`; ASCII digits only."""
    mantissa, mark, exponent = unsigned.replace("E", "e").partition("e")
    if mark:
        exponent = exponent[1:] if exponent[:1] in ("+", "-") else exponent
        if not exponent or exponent.strip(_DIGITS):
            return False
    whole, _, fraction = mantissa.partition(".")
    return bool(whole or fraction) and not (whole + fraction).strip(_DIGITS)


class LiteralText(str):
    """A text of a field that holds `${` as it is.

    It equals the same text of any other kind, and can be given to another field.
    """

    __slots__ = ()


def literal(text: str) -> str:
    """A text as a field stores it, of which it is known that it is no reference.

    Returns:
        the same text; a `LiteralText` where it would otherwise be read as a reference.
    """
    return LiteralText(text) if OPENING in text else str(text)


def escaped(text: str) -> str:
    """A text as files, flags and Python have it."""
    return text.replace(OPENING, ESCAPED)


def unescaped(text: str) -> LiteralText:
    """A text as it is meant.

    Returns:
        the text with `${` for each `$${`; what `escaped` gave is as it was before.
    """
    return LiteralText(text.replace(ESCAPED, OPENING))


def refers(text: str) -> bool:
    """Whether a text is, or tries to be, a reference.

    Returns:
        True if it holds a `${` that no further `$` stands before.
    """
    if OPENING not in text or isinstance(text, LiteralText):
        return False
    return OPENING in text.replace(ESCAPED, " ")


def refuse_credentials(text: str) -> None:
    """Refuse a text that holds a secret, since every value of a configuration is recorded.

    Raises:
        Invalid: if a secret is in it; the error does not repeat it.
    """
    found = credential_in(text)
    if found is not None:
        raise Invalid(
            f"holds {found} (it is not shown here); configurations are recorded, so a secret is "
            f"never part of one",
            hint="Keep it in a Secret field of its own, as 'env:NAME' or 'file:PATH', or in the "
            "service's own login file.",
            secret=True,
        )


def too_large(size: int, format: Format) -> str:
    """Why a file of so many bytes is not read.

    Arguments:
        format: `"toml"`, `"yaml"` or `"json"`.
    """
    limit = f"at most {MAX_BYTES[format] // MIB} MiB of {format.upper()} are read"
    return f"the file holds {size} bytes; {limit}"


def may_nest_deeply(text: str, plain: str) -> bool:
    """Whether brackets may stand inside one another deeper than `MAX_DEPTH`; quick, by lines.

    Arguments:
        plain: a regular expression for the texts in quotes, and comments, of one line; none may
            go on in the next.

    Returns:
        False means that they do not; True, that they may.
    """
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    import re

    depth = 0
    for line in text.split("\n"):
        opening, closing = line.count("[") + line.count("{"), line.count("]") + line.count("}")
        if not (opening or closing):
            continue
        if '"' in line or "'" in line or "#" in line:
            line = re.sub(plain, "", line)
            opening, closing = line.count("[") + line.count("{"), line.count("]") + line.count("}")
        depth += opening
        if depth > MAX_DEPTH:
            return True
        depth = max(0, depth - closing)
    return False


def has_long_number(text: str) -> bool:
    """Whether a run of digits is so long that converting it is refused; it may stand inside quotes.

    Returns:
        False means that no number of the file is too long; True, that one may be.
    """
    if len(text) <= MAX_DIGITS or max(map(len, text.split("\n"))) <= MAX_DIGITS:
        return False
    import re

    # The look-behind starts a match at the head of a run only: linear in the length of the text.
    pattern = rf"(?<![0-9A-Fa-f_])[0-9A-Fa-f_]{{{MAX_DIGITS + 1}}}"
    return re.search(pattern, text) is not None


def is_text(value: str) -> bool:
    """Whether a string can be written to a file: half a surrogate pair cannot."""
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
    """Whether a text can be the path of a file or folder on the systems that there are."""
    if not can_be_named(text):
        return False
    from os import fsencode

    data = fsencode(text)
    return len(data) < MAX_PATH and all(len(part) <= MAX_NAME for part in data.split(b"/"))
