"""Axes of sweeps: distributions, and spaces with points that are the same on every machine.

The size of a space is known in advance, but its points are generated one by one. Spaces nest
freely: a product of zips, a chain of products, a list inside a grid.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from decimal import Context, Decimal
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any, Self, cast

from setpoint.config import (
    PROGRAM,
    Config,
    Invalid,
    Origin,
    SetpointError,
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
from setpoint.sweep.setting import Point, Raw, Setting, split_points, value_text

# Decimal's logarithm and exponential are correctly rounded by definition; the last digit of those
# in C libraries depends on the machine.
CONTEXT = Context(prec=30)
BITS = 256
EXAMPLE = "log_uniform(1e-5, 1e-2)"


def draw(seed: int, index: int, name: str) -> Fraction:
    """Draw one number, uniform over [0, 1): SHA-256 of the three, as a binary fraction.

    Each axis has an independent stream, by its name.
    """
    digest = hashlib.sha256(f"{seed}/{index}/{name}".encode()).digest()
    return Fraction(int.from_bytes(digest, "big"), 2**BITS)


def linear(share: Fraction, low: float, high: float) -> float:
    """Interpolate linearly between two limits."""
    exact = Decimal(repr(low)) + _decimal(share) * (Decimal(repr(high)) - Decimal(repr(low)))
    digits = 5 - (Decimal(repr(high)) - Decimal(repr(low))).adjusted()
    return _inside(exact.quantize(Decimal(1).scaleb(-digits), context=CONTEXT), low, high)


def logarithmic(share: Fraction, low: float, high: float) -> float:
    """Interpolate geometrically between two limits."""
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
        """Quantile of the distribution, for a share in [0, 1)."""
        raise AssertionError(f"{type(self).__name__} is not a variant")

    def extremes(self) -> list[Any]:
        """Extreme values, for checks before anything runs."""
        raise AssertionError(f"{type(self).__name__} is not a variant")

    def describe(self) -> str:
        """The distribution as a call, for example `log_uniform(1e-5, 0.01)`."""
        tag = type(self).__setpoint__.tag
        fields = [getattr(self, name) for name in fields_of(self)]
        values = self.extremes() if isinstance(self, Choices) else fields
        return f"{tag}({', '.join(map(value_text, values))})"

    def fault(self) -> str:
        """The problem of a combination of values; empty if there is none."""
        return ""


class Choices(Distribution, type="choice"):
    """One of several equally probable values."""

    values: tuple[Raw, ...]
    """The values."""

    def at(self, share: Fraction) -> Any:
        return self.values[int(share * len(self.values))].value

    def extremes(self) -> list[Any]:
        return [item.value for item in self.values]

    def fault(self) -> str:
        return "" if self.values else "has no values"


class Uniform(Distribution, type="uniform"):
    """float between two limits, uniformly distributed."""

    low: float
    """Lower limit."""

    high: float
    """Upper limit."""

    def at(self, share: Fraction) -> Any:
        return linear(share, self.low, self.high)

    def extremes(self) -> list[Any]:
        return [self.low, self.high]

    def fault(self) -> str:
        return _order(self.low, self.high)


class LogUniform(Uniform, type="log_uniform"):
    """float between two limits, uniformly distributed in its logarithm."""

    low: float = field(gt=0)
    """Lower limit."""

    high: float = field(gt=0)
    """Upper limit."""

    def at(self, share: Fraction) -> Any:
        return logarithmic(share, self.low, self.high)


class Integer(Distribution, type="integer"):
    """int between two limits, inclusive, uniformly distributed."""

    low: int
    """Lower limit, included."""

    high: int
    """Upper limit, included."""

    step: int = field(default=1, ge=1)
    """Step between values, counted from low."""

    def at(self, share: Fraction) -> Any:
        return self.low + self.step * int(share * ((self.high - self.low) // self.step + 1))

    def extremes(self) -> list[Any]:
        return [self.low, self.low + (self.high - self.low) // self.step * self.step]

    def fault(self) -> str:
        return _order(self.low, self.high)


class Drawn(Scalar):
    """Type of a field that contains a distribution, written as a mapping or as a call."""

    __setpoint_scalar__ = f"a distribution, such as {EXAMPLE}"
    __slots__ = ("distribution",)

    def __init__(self, distribution: Distribution) -> None:
        self.distribution = distribution

    @classmethod
    def read(cls, value: object) -> Self:
        """Read a text such as `uniform(0, 1)`, or a mapping with its type.

        Raises:
            Invalid: the value is not a distribution, or its limits contradict each other.
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
        """The distribution as plain data."""
        return to_plain(self.distribution)


def is_call(text: str) -> bool:
    """True if a text is a distribution written as a call."""
    name, opened, _ = text.partition("(")
    return bool(opened) and name.strip().replace("-", "_") in Distribution.__setpoint__.variants


def misspelt_call(text: str) -> str:
    """Hint naming the nearest distribution for text such as `loguniform(1e-5, 1)`; else empty."""
    name, opened, inside = text.strip().partition("(")
    if not opened or not inside.endswith(")") or is_call(text):
        return ""
    return did_you_mean(name.strip(), Distribution.__setpoint__.variants)


def call_mapping(text: str) -> dict[str, object]:
    """Parse `uniform(0, 1)` into a mapping of `type` and the fields.

    Raises:
        Invalid: the text has another form.
    """
    name, opened, inside = text.strip().partition("(")
    tag = name.strip().replace("-", "_")
    variants: dict[str, Any] = Distribution.__setpoint__.variants
    cls: type[Distribution] | None = variants.get(tag)
    if cls is None or not opened or not inside.endswith(")"):
        tags = tuple(Distribution.__setpoint__.variants)
        hint = did_you_mean(tag, tags) if cls is None else ""
        raise Invalid(f"is not {Drawn.__setpoint_scalar__}: got {text!r}", tags, hint=hint)
    if cls is Choices:
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
    """The values between the parentheses; one may have parameters, as in `smoke(steps=5, a=1)`."""
    values: list[object] = []
    for part in split_points(inside) if inside.strip() else ():
        if "(" in part and part[0] not in "[{\"'":
            values.append(PlainScalar(part))
        else:
            values.extend(parse_list(PlainScalar(f"[{part}]")))
    return values


def _order(low: float, high: float) -> str:
    return "" if low < high else f"low must be below high: got {low} and {high}"


Path = tuple[str, ...]


class Space(ABC):
    """A set of points; `paths` are the fields they set, with origins."""

    paths: dict[Path, Origin]

    @abstractmethod
    def size(self) -> int:
        """The number of points, without generating any."""

    @abstractmethod
    def points(self) -> Iterator[Point]:
        """Generate the points one by one."""


class Axis(Space):
    """One field and the values it takes."""

    def __init__(self, path: Path, values: Sequence[object], origin: Origin) -> None:
        self.path = path
        self.values = values
        self.paths = {path: origin}

    def size(self) -> int:
        return len(self.values)

    def points(self) -> Iterator[Point]:
        for value in self.values:
            yield (Setting(self.path, value, self.paths[self.path]),)


class Listed(Space):
    """Explicit points."""

    def __init__(self, rows: Sequence[Point]) -> None:
        self.rows = rows
        self.paths = {item.path: item.origin for row in rows for item in row}

    def size(self) -> int:
        return len(self.rows)

    def points(self) -> Iterator[Point]:
        yield from self.rows


class Product(Space):
    """Every combination of points; the last part varies fastest.

    Arguments:
        parts: spaces that set different fields; without any, the product is a single point that
            sets nothing.

    Raises:
        SetpointError: two parts set the same field.
    """

    def __init__(self, parts: Sequence[Space]) -> None:
        self.parts = parts
        self.paths = _disjoint_paths(parts)

    def size(self) -> int:
        return prod(part.size() for part in self.parts)

    def points(self) -> Iterator[Point]:
        for combined in product(*(part.points() for part in self.parts)):
            yield tuple(item for point in combined for item in point)


class Zip(Space):
    """At least one space, all of equal size, combined pairwise: first with first.

    Raises:
        SetpointError: the sizes differ, or two spaces set the same field.
    """

    def __init__(self, parts: Sequence[Space]) -> None:
        self.parts = parts
        self.paths = _disjoint_paths(parts)
        if len({part.size() for part in parts}) > 1:
            sizes = ", ".join(f"{'.'.join(next(iter(p.paths)))} has {p.size()}" for p in parts)
            raise SetpointError(f"zipped axes must have the same number of values: {sizes}")

    def size(self) -> int:
        return self.parts[0].size()

    def points(self) -> Iterator[Point]:
        for side in zip(*(part.points() for part in self.parts), strict=True):
            yield tuple(item for point in side for item in point)


class Chained(Space):
    """The points of one space after those of another."""

    def __init__(self, parts: Sequence[Space]) -> None:
        self.parts = parts
        self.paths = {}
        for part in parts:
            self.paths.update(part.paths)

    def size(self) -> int:
        return sum(part.size() for part in self.parts)

    def points(self) -> Iterator[Point]:
        for part in self.parts:
            yield from part.points()


class RandomPoints(Space):
    """Points drawn from distributions, the same for the same seed everywhere.

    With the same seed, a larger number of points extends a smaller one, and an additional axis does
    not change the others.
    """

    def __init__(
        self, axes: Mapping[Path, tuple[Distribution, Origin]], count: int, seed: int
    ) -> None:
        self.axes = axes
        self.count = count
        self.seed = seed
        self.paths = {path: origin for path, (_, origin) in axes.items()}

    def size(self) -> int:
        return self.count

    def points(self) -> Iterator[Point]:
        for index in range(self.count):
            values: list[Setting] = []
            for path, (distribution, origin) in self.axes.items():
                value: Any = distribution.at(draw(self.seed, index, ".".join(path)))
                values.append(Setting(path, value, origin))
            yield tuple(values)


def _disjoint_paths(parts: Sequence[Space]) -> dict[Path, Origin]:
    """The paths of several spaces, each for a different field.

    Raises:
        SetpointError: two spaces set the same field.
    """
    origins: dict[Path, Origin] = {}
    for part in parts:
        for path, origin in part.paths.items():
            if path in origins:
                first, second = origins[path].describe(path), origin.describe(path)
                both = f"{first} and {second}" if first != second else f"{first}, twice"
                raise SetpointError(f"{'.'.join(path)} is set by two parts of the sweep: {both}")
            origins[path] = origin
    return origins
