"""`Period` of a recurring event, `Duration` of training, and `Length` of a part of it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, ClassVar, Self, cast

from setpoint.config import Invalid, did_you_mean, for_error, nearest
from setpoint.config.values.scalar import Scalar
from setpoint.config.words.text import parse_list

TIME_UNITS = {
    "s": "s", "sec": "s", "second": "s", "seconds": "s",
    "min": "min", "minute": "min", "minutes": "min",
    "h": "h", "hour": "h", "hours": "h",
    "day": "days", "days": "days",
}  # fmt: skip
UNITS = {
    "step": "steps", "steps": "steps",
    "epoch": "epochs", "epochs": "epochs",
    "token": "tokens", "tokens": "tokens",
    **TIME_UNITS,
}  # fmt: skip
"""The units by their spellings."""
SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "days": 86400.0}
SHAPE = re.compile(r"\s*([0-9][0-9_]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+)\s*([a-z_]*)\s*")
EXAMPLES = ('"100 steps"', '"0.25 epochs"', '"10 min"', '"1e9 tokens"')
LENGTHS = (*EXAMPLES, '"5 %"')
NUMBER = r"([0-9][0-9_]*\.?[0-9]*([eE][+-]?[0-9]+)?|\.[0-9]+)"
LONGEST = 100
"""Maximum characters of a text, or bits of a number."""
MOST = 2.0**63
"""Upper limit of each count."""
ORDER = ("steps", "epochs", "tokens", "seconds")
WORDS = ("last_step", "never")
# Far above the rounding error of a quotient, and far below a step's share of anything.
TOLERANCE = 1e-12
# For JSON Schema, in the syntax that Python and ECMA-262 share.
MEASURE = rf"\s*{NUMBER}\s*({'|'.join(UNITS)})?\s*"


def _measure(value: object, *, zero: bool = False) -> tuple[int | float, str, str]:
    """A count, its unit (time in seconds) and its canonical text, equal for equal counts.

    With `zero` a count may be 0, which is 0 steps in every unit.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        text = f"{value} steps" if value.bit_length() < LONGEST else ""
    else:
        text = value if isinstance(value, str) and len(value) < LONGEST else ""
    match = SHAPE.fullmatch(text)
    if match is None:
        raise Invalid(
            f"must be a non-negative number with a unit: got {for_error(value)}", EXAMPLES
        )
    digits, word = match[1].replace("_", ""), match[2] or "steps"
    unit = UNITS.get(word)
    if unit is None:
        meant = [UNITS[near] for near in nearest(word, UNITS, 1)]
        hint = f"Did you mean {meant[0]}?" if meant else ""
        raise Invalid(
            f"has an unknown unit {word!r}", tuple(dict.fromkeys(UNITS.values())), hint=hint
        )
    number = float(digits)
    if zero and number == 0:
        return 0, "steps", "0 steps"
    if not 0 < number < float("inf"):
        raise Invalid(f"must be a positive count: got {for_error(value)}", EXAMPLES)
    if number >= MOST / SECONDS.get(unit, 1.0):
        raise Invalid(f"is out of range: it must be below 2**63: got {for_error(value)}", EXAMPLES)
    if unit in SECONDS:
        seconds = number * SECONDS[unit]
        return seconds, "seconds", _time(seconds)
    # Beyond 2**53 a float would not be exact.
    exact = int(digits) if digits.isdecimal() else int(number) if number.is_integer() else number
    # A bare 1.0 probably means a share, such as a warm-up ratio, rather than one step.
    share = not match[2] and "." in digits and "e" not in digits.lower()
    if unit != "epochs" and (share or not isinstance(exact, int)):
        raise Invalid(f"must be an integer number of {unit}: got {for_error(value)}", EXAMPLES)
    return exact, unit, f"{exact} {unit.removesuffix('s') if exact == 1 else unit}"


def _time(seconds: float) -> str:
    for unit, length in (("h", 3600.0), ("min", 60.0)):
        if seconds % length == 0:
            return f"{int(seconds / length)} {unit}"
    return f"{int(seconds) if seconds.is_integer() else seconds!r} s"


class Quantity(Scalar):
    """A value that is not a plain number but can be used in the arithmetic of references.

    Attributes:
        examples: valid values.
    """

    __slots__ = ()
    examples: ClassVar[tuple[str, ...]]

    @classmethod
    def read(cls, value: object) -> Self:
        if isinstance(value, cls):
            return value
        if isinstance(value, str | int) and not isinstance(value, bool):
            return cast(Any, cls)(value)
        raise cls.refusal(value)

    @classmethod
    def refusal(cls, value: object) -> Invalid:
        """The error for a value that cannot be read."""
        kind = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", cls.__name__).lower()
        return Invalid(f"is not a {kind}: got {for_error(value)}", cls.examples)

    @staticmethod
    def __setpoint_combine__(operator: str, left: Any, right: Any) -> Length | int | float:
        return combine(operator, left, right)


class Period(Quantity):
    """Period of a recurring event: a number of steps, epochs, tokens or minutes, or the end.

    Arguments:
        text: `"100 steps"`, `"0.25 epochs"`, `"10 min"`, `"1e9 tokens"`, a bare count of steps,
            `"last_step"` or `"never"`.

    Raises:
        Invalid: the text is none of these.
    """

    __slots__ = ("_text", "count", "unit")
    examples = (*EXAMPLES, *WORDS)
    __setpoint_scalar__ = "a period such as 100, '100 steps', '10 min', 'last_step' or 'never'"
    __setpoint_json_schema__ = {  # noqa: RUF012 - read only
        "type": ["integer", "string"],
        "minimum": 1,
        "pattern": f"^({MEASURE}|{'|'.join(WORDS)})$",
    }

    count: int | float
    unit: str

    def __init__(self, text: str | int) -> None:
        if isinstance(text, str) and text in WORDS:
            self.count, self.unit, self._text = 0, str(text), str(text)
            return
        try:
            self.count, self.unit, self._text = _measure(text)
        except Invalid as error:
            hint = error.hint or (did_you_mean(text, WORDS) if isinstance(text, str) else "")
            invalid = Invalid(error.message, (*error.valid, *WORDS), hint=hint)
            raise invalid.called("Period", text) from None

    @classmethod
    def read(cls, value: object) -> Self:
        """See `Scalar.read`; a length above 0 is also a period."""
        return super().read(str(value) if isinstance(value, Length) and value else value)

    def multiples_in(self, distance: float) -> int:
        """The number of full periods in a distance in its unit; integers are counted exactly."""
        if isinstance(distance, int) and isinstance(self.count, int):
            return distance // self.count
        # 0.3 / 0.1 is a little below 3, but the third tenth of an epoch must not come a step late.
        return math.floor(distance / self.count * (1 + TOLERANCE))

    def dump(self) -> str:
        """The period as plain data."""
        return self._text


class Length(Quantity):
    """Length of a part of training: a count with a unit, or a fraction of the whole.

    `bool(length)` is True above 0.

    Arguments:
        text: a count with a unit as for `Period`, `0`, or a percentage such as `"5 %"`.

    Attributes:
        count: the count; of a share, the percentage.
        unit: `"steps"`, `"epochs"`, `"tokens"`, `"seconds"` or `"%"`.

    Raises:
        Invalid: the text is none of these.
    """

    __slots__ = ("_text", "count", "unit")
    examples = LENGTHS
    __setpoint_scalar__ = "a length such as 100, '100 steps', '0.5 epochs', '10 min' or '5 %'"
    __setpoint_json_schema__ = {  # noqa: RUF012 - read only
        "type": ["integer", "string"],
        "minimum": 0,
        "pattern": rf"^({MEASURE}|{NUMBER}\s*%\s*)$",
    }

    count: int | float
    unit: str

    def __init__(self, text: str | int) -> None:
        try:
            self.count, self.unit, self._text = _share(text) or _measure(text, zero=True)
        except Invalid as error:
            hint = error.hint or _as_share(text)
            raise Invalid(error.message, LENGTHS, hint=hint).called("Length", text) from None

    @property
    def share(self) -> float | None:
        """The fraction of the whole, from 0 to 1; None for a count."""
        return shifted(self.count, -2) if self.unit == "%" else None

    @classmethod
    def of_share(cls, share: float) -> Self:
        """Make a length from a fraction, its `share`."""
        return cls(f"{shifted(share, 2)!r} %")

    @classmethod
    def read(cls, value: object) -> Self:
        """See `Scalar.read`; a duration with one limit is also a length."""
        if isinstance(value, Duration) and len(value.limits) == 1:
            value = value.limits[0].text
        return super().read(value)

    @classmethod
    def refusal(cls, value: object) -> Invalid:
        return Invalid(super().refusal(value).message, LENGTHS, hint=_as_share(value))

    def dump(self) -> str:
        """The length as plain data."""
        return self._text

    def __bool__(self) -> bool:
        return self.count > 0


def _as_share(value: object) -> str:
    """The hint about a ratio that should be written as a percentage."""
    try:
        ratio = (
            float(value) if isinstance(value, str | float) and len(str(value)) < LONGEST else 0.0
        )
    except ValueError:
        return ""
    return f'A share of the whole is written "{shifted(ratio, 2):g} %".' if 0 < ratio <= 1 else ""


def _share(value: object) -> tuple[float, str, str] | None:
    """A percentage, its unit and its canonical text; None for anything else."""
    match = re.fullmatch(rf"\s*({NUMBER})\s*%\s*", value) if isinstance(value, str) else None
    if match is None or len(match[0]) >= LONGEST:
        return None
    count = float(match[1].replace("_", ""))
    if count == 0:
        return 0, "steps", "0 steps"
    if not 0 < count <= 100:
        raise Invalid(f"must be at most 100 %: got {for_error(value)}", ('"5 %"',))
    return count, "%", f"{int(count) if count.is_integer() else repr(count)} %"


def shifted(number: float, places: int) -> float:
    """A number with its decimal point moved, keeping the number of digits written."""
    digits, _, exponent = repr(float(number)).partition("e")
    return float(f"{digits}e{int(exponent or 0) + places}")


class Limit:
    """One of the limits of a `Duration`: text as for `Period`."""

    __slots__ = ("count", "text", "unit")

    def __init__(self, text: object) -> None:
        self.count, self.unit, self.text = _measure(text)


class Duration(Quantity):
    """Duration of training: one or several limits; the first one reached ends it.

    Arguments:
        limits: texts such as `"300 steps"`, `"2 epochs"`, `"1e9 tokens"`, `"30 min"`.

    Raises:
        Invalid: a limit cannot be read, or two have the same unit.
    """

    __slots__ = ("limits",)
    examples = EXAMPLES
    __setpoint_scalar__ = "a duration such as '300 steps', '2 epochs', '30 min', or a list of them"
    __setpoint_json_schema__ = {  # noqa: RUF012 - read only
        "type": ["integer", "string", "array"],
        "minimum": 1,
        # One text may have several: `300 steps, 30 min`.
        "pattern": rf"^({MEASURE}|[\s\S]*,[\s\S]*|\[[\s\S]*)$",
        "items": {"type": ["integer", "string"], "minimum": 1, "pattern": f"^{MEASURE}$"},
        "minItems": 1,
    }

    limits: tuple[Limit, ...]

    def __init__(self, *limits: str | int) -> None:
        try:
            # A fixed order, so that equal durations have equal records.
            read = sorted(map(Limit, limits), key=lambda limit: ORDER.index(limit.unit))
            units = [limit.unit for limit in read]
            if not units:
                raise Invalid("needs at least one limit", EXAMPLES)
            if repeated := [unit for unit in units if units.count(unit) > 1]:
                raise Invalid(f"has two limits in {repeated[0]}; give the intended one")
            self.limits = tuple(read)
        except Invalid as error:
            raise error.called("Duration", limits[0] if len(limits) == 1 else limits) from None

    def in_unit(self, unit: str) -> int | float | None:
        """The limit in steps, epochs, tokens or seconds."""
        return next((limit.count for limit in self.limits if limit.unit == unit), None)

    def part(self, share: float) -> Duration:
        """A fraction of each limit; steps and tokens are rounded down to integers, at least 1."""
        texts: list[str] = []
        for limit in self.limits:
            count = float(f"{limit.count * share:.12g}")  # without the noise of binary fractions
            is_integer = limit.unit in ("steps", "tokens")
            unit = "s" if limit.unit == "seconds" else limit.unit
            texts.append(f"{max(1, int(count)) if is_integer else count} {unit}")
        return Duration(*texts)

    @classmethod
    def read(cls, value: object) -> Self:
        """See `Scalar.read`; a length above 0 is also a duration."""
        if isinstance(value, Length) and value:
            value = str(value)
        if isinstance(value, str) and ("," in value or value.startswith("[")):
            value = parse_list(value)
        if not isinstance(value, list | tuple):
            return super().read(value)
        texts: list[str | int] = []
        for item in cast(Sequence[object], value):
            if not isinstance(item, str | int) or isinstance(item, bool):
                raise cls.refusal(item)
            texts.append(item)
        return cls(*texts)

    def dump(self) -> str | list[str]:
        """The duration as plain data."""
        texts = [limit.text for limit in self.limits]
        return texts[0] if len(texts) == 1 else texts

    def __str__(self) -> str:
        return " or ".join(limit.text for limit in self.limits)

    def __repr__(self) -> str:
        return f"Duration({', '.join(repr(limit.text) for limit in self.limits)})"


Countable = int | float | Period | Length | Duration


def combine(operator: str, left: Countable, right: Countable) -> Length | int | float:
    """Compute with lengths in a reference: `schedule.horizon // 10`.

    Arguments:
        operator: `+`, `-`, `*`, `/`, `//`, `%` or `**`, which is invalid for lengths.

    Returns:
        a length; the ratio of two lengths is a number.

    Raises:
        Invalid: lengths in different units, several limits, or a product of lengths.
    """
    first, second = _counted(left), _counted(right)
    if operator == "**":
        raise Invalid(f"cannot be computed: {left} ** {right} is not a length")
    if operator in "+-":
        first, second = ((n, unit or "steps") for n, unit in (first, second))
    (x, unit), (y, other) = first, second
    if unit and other and unit != other:
        raise Invalid(f"cannot be computed: {left} and {right} have different units")
    if (operator == "*" and unit and other) or (operator not in "+-*" and other and not unit):
        raise Invalid(f"cannot be computed: {left} {operator} {right} is not a length")
    result = {
        "+": lambda: x + y, "-": lambda: x - y, "*": lambda: x * y,
        "/": lambda: x / y, "//": lambda: x // y, "%": lambda: x % y,
    }[operator]()  # fmt: skip
    if unit and other and operator in ("/", "//"):
        return result
    unit = unit or other
    # Without the noise of binary fractions: 0.07 * 600 is 42.
    near = round(result, 6)
    number = int(near) if near == int(near) else result
    return Length(f"{number} {'s' if unit == 'seconds' else unit}")


def _counted(value: Countable) -> tuple[int | float, str]:
    """A count and its unit; a plain number has none."""
    if isinstance(value, int | float):
        return value, ""
    if isinstance(value, Duration):
        first, *more = value.limits
        if more:
            raise Invalid(f"cannot be computed: {value} has several limits")
        return first.count, first.unit
    if isinstance(value, Period) and value.unit in WORDS:
        raise Invalid(f"cannot be computed: {value} is not a count")
    return value.count, value.unit
