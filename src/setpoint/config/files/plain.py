"""Text without quotes: its field says what it means, or `guess` where no field has a type."""

from __future__ import annotations

from ..errors import SetpointError
from .limits import MAX_DIGITS, TOO_BIG, TOO_LONG


class PlainScalar(str):
    """A text that was written without quotes and is to be read by the type of its field.

    Arguments:
        text: the text as it stands in the file, the flag or the environment variable.
    """

    __slots__ = ()


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


def guess(text: PlainScalar) -> bool | int | float | str:
    """What a plain scalar means where no field gives it a type.

    Arguments:
        text: the plain scalar.

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
