"""`ByteSize`: a number of bytes, written with its unit."""

from __future__ import annotations

import re
from typing import Any, Self, SupportsIndex

from setpoint.config import Invalid, for_error
from setpoint.config.values.scalar import Scalar
from setpoint.config.words.plain_data import MAX_BITS, TOO_MANY_DIGITS

DECIMAL = {
    f"{prefix}B": 1000**power for power, prefix in enumerate(("", "k", "M", "G", "T", "P", "E"))
}
BINARY = {
    f"{prefix}iB": 1024**power for power, prefix in enumerate(("K", "M", "G", "T", "P", "E"), 1)
}
UNITS = {**DECIMAL, **BINARY}
BY_SPELLING = {unit.lower(): unit for unit in UNITS}
SHAPE = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")
EXAMPLES = ('"16 MiB"', '"2 GB"', '"512"')
LONGEST = 40  # characters that a size can need


class ByteSize(int, Scalar):
    """A number of bytes: an int that reads and writes units.

    `KiB`, `MiB`, `GiB` ... are powers of 1024 and `kB`, `MB`, `GB` ... powers of 1000; an ambiguous
    letter is refused, as is `Mb`, which counts bits.

    Arguments:
        size: a text such as `"16 MiB"`, or a count of bytes.

    Raises:
        Invalid: the value is not an integer number of bytes, or is negative.
    """

    __slots__ = ()
    __setpoint_scalar__ = "a size in bytes such as '16 MiB', '2 GB' or 512"
    __setpoint_json_schema__ = {  # noqa: RUF012 - read only
        "type": ["integer", "string"],
        "minimum": 0,
        "pattern": r"^\s*[0-9][0-9_]*(\.[0-9]+)?\s*(([kKmMgGtTpPeE][iI]?)?B|b)?\s*$",
    }

    def __new__(cls, size: str | int) -> Self:
        try:
            return super().__new__(cls, _count(size))
        except Invalid as error:
            raise error.called("ByteSize", size) from None

    @classmethod
    def read(cls, value: object) -> Self:
        """Make a value from a size, a text or a count of bytes.

        Raises:
            Invalid: the value cannot be read.
        """
        if isinstance(value, str | int):
            return value if isinstance(value, cls) else cls(value)
        raise Invalid(f"is not a size in bytes: got {for_error(value)}", EXAMPLES)

    def dump(self) -> str:
        """The size in canonical text: the shortest integer count of a unit, preferably binary."""
        options = [("", int(self))]
        for unit, size in (*BINARY.items(), *DECIMAL.items()):
            if size > 1 and self and not self % size:
                options.append((unit, self // size))
        unit, count = min(options, key=lambda option: option[1])
        return f"{count} {unit}".strip()

    __repr__ = Scalar.__repr__  # not int's

    def __format__(self, format_spec: str) -> str:
        return format(int(self), format_spec) if format_spec else self.dump()

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return type(self), (int(self),)


def _count(size: object) -> int:
    if isinstance(size, str):
        return _parse(size)
    if isinstance(size, bool) or not isinstance(size, int):
        raise Invalid(f"is not a size in bytes: got {for_error(size)}", EXAMPLES)
    if size < 0:
        raise Invalid(f"must not be negative: got {for_error(size)}", EXAMPLES)
    if size.bit_length() > MAX_BITS:
        raise Invalid(TOO_MANY_DIGITS)
    return size


def _parse(text: str) -> int:
    match = SHAPE.fullmatch(text) if len(text) <= LONGEST else None
    if match is None:
        raise Invalid(f"is not a size in bytes: got {for_error(text)}", EXAMPLES)
    digits, written = match[1].replace("_", ""), match[2]
    unit = BY_SPELLING.get(written.lower()) if written else "B"
    if unit is None or (written.endswith("b") and len(written) > 1):
        raise _wrong_unit(digits, written)
    from fractions import Fraction  # imports decimals, which few configurations need

    size = Fraction(digits) * UNITS[unit]
    if size.denominator != 1:
        floor = int(size)
        near = (f'"{floor}"', f'"{floor + 1}"')
        raise Invalid(f"is no integer number of bytes: {digits} {unit} are {float(size):g}", near)
    return int(size)


def _wrong_unit(digits: str, written: str) -> Invalid:
    letter = written[0].upper()
    near = [u for u in (f"{letter}B" if letter != "K" else "kB", f"{letter}iB") if u in UNITS]
    if written.endswith("b") and near:
        meant = f"has the unit {written!r}, which counts bits; sizes are given in bytes"
    elif len(written) == 1 and near:
        meant = f"has the unit {written!r}, which could mean powers of 1000 or of 1024"
    else:
        return Invalid(f"has an unknown unit {written!r}", tuple(UNITS))
    return Invalid(meant, tuple(f'"{digits} {unit}"' for unit in near))


def in_units(size: int) -> str:
    """Format a size with three digits, for example `1.25 GiB`."""
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 999.5 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.3g} {units[0]}"
