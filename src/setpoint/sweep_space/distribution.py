"""Distributions of the axes of random sweeps and searches, the same on every machine."""

from __future__ import annotations

import hashlib
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any, Self, cast

from setpoint.config import (
    PROGRAM,
    Config,
    Invalid,
    Origin,
    chain_of,
    did_you_mean,
    field,
    fields_of,
    to_plain,
)
from setpoint.config.types.compound import SectionType
from setpoint.config.values.scalar import Scalar
from setpoint.config.words.plain_data import PlainScalar
from setpoint.config.words.text import parse_list
from setpoint.sweep_space.setting import Raw, split_points, value_text

# Decimal's logarithm and exponential are rounded correctly by definition; those of C libraries
# differ in the last digit from machine to machine.
CONTEXT = Context(prec=30)
BITS = 256
EXAMPLE = "log_uniform(1e-5, 1e-2)"


def draw(seed: int, index: int, name: str) -> Fraction:
    """One number, evenly spread over [0, 1).

    Arguments:
        name: of the axis; each has a stream of its own, whatever other axes there are.

    Returns:
        SHA-256 of the three, as a binary fraction.
    """
    digest = hashlib.sha256(f"{seed}/{index}/{name}".encode()).digest()
    return Fraction(int.from_bytes(digest, "big"), 2**BITS)


def linear(share: Fraction, low: float, high: float) -> float:
    """The number at a share of the way from one limit to the other."""
    exact = Decimal(repr(low)) + _decimal(share) * (Decimal(repr(high)) - Decimal(repr(low)))
    digits = 5 - (Decimal(repr(high)) - Decimal(repr(low))).adjusted()
    return _inside(exact.quantize(Decimal(1).scaleb(-digits), context=CONTEXT), low, high)


def logarithmic(share: Fraction, low: float, high: float) -> float:
    """The number at a share of the way, where equal factors are equal distances."""
    begin, end = (CONTEXT.ln(Decimal(repr(limit))) for limit in (low, high))
    exact = CONTEXT.exp(begin + _decimal(share) * (end - begin))
    return _inside(Context(prec=5).plus(exact), low, high)


def _decimal(share: Fraction) -> Decimal:
    return CONTEXT.divide(Decimal(share.numerator), Decimal(share.denominator))


def _inside(value: Decimal, low: float, high: float) -> float:
    return min(max(float(value), low), high)


class Distribution(Config):
    """Distribution of the values of an axis."""

    def at(self, share: Fraction) -> Any:
        """The value at a share of the way through the distribution.

        Arguments:
            share: evenly spread over [0, 1).
        """
        raise AssertionError(f"{type(self).__name__} is no variant")

    def extremes(self) -> list[Any]:
        """Values that bound all the others, for a check before anything runs."""
        raise AssertionError(f"{type(self).__name__} is no variant")

    def describe(self) -> str:
        """The distribution as a call.

        Returns:
            for instance `log_uniform(1e-5, 0.01)`.
        """
        tag = type(self).__setpoint__.tag
        fields = [getattr(self, name) for name in fields_of(self)]
        values = self.extremes() if isinstance(self, Choice) else fields
        return f"{tag}({', '.join(map(value_text, values))})"

    def fault(self) -> str:
        """The problem of the values taken together; empty if there is none."""
        return ""


class Choice(Distribution, type="choice"):
    """One of several values, equally probable."""

    values: tuple[Raw, ...]
    """The values."""

    def at(self, share: Fraction) -> Any:
        """See `Distribution.at`."""
        return self.values[int(share * len(self.values))].value

    def extremes(self) -> list[Any]:
        """See `Distribution.extremes`."""
        return [item.value for item in self.values]

    def fault(self) -> str:
        """See `Distribution.fault`."""
        return "" if self.values else "has no values"


class Uniform(Distribution, type="uniform"):
    """float between two limits, uniformly distributed."""

    low: float
    """Lower limit."""

    high: float
    """Upper limit."""

    def at(self, share: Fraction) -> Any:
        """See `Distribution.at`."""
        return linear(share, self.low, self.high)

    def extremes(self) -> list[Any]:
        """See `Distribution.extremes`."""
        return [self.low, self.high]

    def fault(self) -> str:
        """See `Distribution.fault`."""
        return _order(self.low, self.high)


class LogUniform(Uniform, type="log_uniform"):
    """float between two limits, uniformly distributed in its logarithm."""

    low: float = field(gt=0)
    """Lower limit."""

    high: float = field(gt=0)
    """Upper limit."""

    def at(self, share: Fraction) -> Any:
        """See `Distribution.at`."""
        return logarithmic(share, self.low, self.high)


class Integer(Distribution, type="integer"):
    """int between two limits, both included, uniformly distributed."""

    low: int
    """Lower limit, included."""

    high: int
    """Upper limit, included."""

    step: int = field(default=1, ge=1)
    """Step between values, counted from low."""

    def at(self, share: Fraction) -> Any:
        """See `Distribution.at`."""
        return self.low + self.step * int(share * ((self.high - self.low) // self.step + 1))

    def extremes(self) -> list[Any]:
        """See `Distribution.extremes`."""
        return [self.low, self.low + (self.high - self.low) // self.step * self.step]

    def fault(self) -> str:
        """See `Distribution.fault`."""
        return _order(self.low, self.high)


class Drawn(Scalar):
    """The value of a field that holds a distribution, written as a mapping or as a call."""

    __setpoint_scalar__ = f"a distribution, such as {EXAMPLE}"
    __slots__ = ("distribution",)

    def __init__(self, distribution: Distribution) -> None:
        self.distribution = distribution

    @classmethod
    def read(cls, value: object) -> Self:
        """Read a distribution.

        Arguments:
            value: a text such as `uniform(0, 1)`, or a mapping with its type.

        Raises:
            Invalid: if it is none, or its limits contradict each other.
        """
        if isinstance(value, Drawn):
            return cls(value.distribution)
        mapping = call_mapping(value) if isinstance(value, str) else value
        section = cast(Distribution, SectionType((Distribution,)).read(mapping, Origin(PROGRAM)))
        fields = type(section).__setpoint__.fields
        required = [name for name, info in fields.items() if info.required]
        missing = [name for name in required if not chain_of(section, name)]
        if missing:
            raise Invalid(f"needs a value for {' and '.join(missing)}")
        if fault := section.fault():
            raise Invalid(fault)
        return cls(section)

    def dump(self) -> Any:
        """The distribution in plain data."""
        return to_plain(self.distribution)


def is_call(text: str) -> bool:
    """True if a text is a distribution written as a call."""
    name, opened, _ = text.partition("(")
    return bool(opened) and name.strip().replace("-", "_") in Distribution.__setpoint__.variants


def misspelt_call(text: str) -> str:
    """A hint at the nearest distribution for a text such as `loguniform(1e-5, 1)`; else empty."""
    name, opened, inside = text.strip().partition("(")
    if not opened or not inside.endswith(")") or is_call(text):
        return ""
    return did_you_mean(name.strip(), Distribution.__setpoint__.variants)


def call_mapping(text: str) -> dict[str, object]:
    """`uniform(0, 1)` as the mapping that it stands for.

    Returns:
        `type` and the fields.

    Raises:
        Invalid: if it has another form.
    """
    name, opened, inside = text.strip().partition("(")
    tag = name.strip().replace("-", "_")
    variants: dict[str, Any] = Distribution.__setpoint__.variants
    cls: type[Distribution] | None = variants.get(tag)
    if cls is None or not opened or not inside.endswith(")"):
        tags = tuple(Distribution.__setpoint__.variants)
        hint = did_you_mean(tag, tags) if cls is None else ""
        raise Invalid(f"is not {Drawn.__setpoint_scalar__}: got {text!r}", tags, hint=hint)
    if cls is Choice:
        return {"type": tag, "values": _choices(inside[:-1])}
    given: dict[str, object] = {"type": tag}
    names = list(fields_of(cls))
    parts = split_points(inside[:-1]) if inside[:-1].strip() else []
    for index, part in enumerate(parts):
        key, equals, rest = part.partition("=")
        if not equals and index >= len(names):
            raise Invalid(f"takes {len(names)} values ({', '.join(names)}), got {len(parts)}")
        word, value = (key.strip(), rest.strip()) if equals else (names[index], part.strip())
        if word in given:
            raise Invalid(f"gives {word} twice")
        given[word] = PlainScalar(value)
    return given


def _choices(inside: str) -> list[object]:
    """The values between the parentheses; one may have parameters, as `smoke(steps=5, a=1)`."""
    found: list[object] = []
    for part in split_points(inside) if inside.strip() else ():
        if "(" in part and part[0] not in "[{\"'":
            found.append(PlainScalar(part))
        else:
            found.extend(parse_list(PlainScalar(f"[{part}]")))
    return found


def _order(low: float, high: float) -> str:
    return "" if low < high else f"low must be below high: got {low} and {high}"
