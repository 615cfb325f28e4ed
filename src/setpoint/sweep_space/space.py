"""The kinds of sweeps: each has a size that is known at once, and points that are made one by one.

They nest freely: a product of zips, a chain of products, a list inside a grid.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

from setpoint.config import Origin, SetpointError
from setpoint.sweep_space.distribution import Distribution, draw
from setpoint.sweep_space.setting import Point, Setting

Path = tuple[str, ...]


class Space(ABC):
    """A set of points; `paths` are the fields that they set, with where that was said."""

    paths: dict[Path, Origin]

    @abstractmethod
    def size(self) -> int:
        """The number of points, without making any."""

    @abstractmethod
    def points(self) -> Iterator[Point]:
        """The points, one by one."""


class Axis(Space):
    """One field and the values that it takes."""

    def __init__(self, path: Path, values: Sequence[object], origin: Origin) -> None:
        self.path = path
        self.values = values
        self.paths = {path: origin}

    def size(self) -> int:
        """See `Space.size`."""
        return len(self.values)

    def points(self) -> Iterator[Point]:
        """See `Space.points`."""
        for value in self.values:
            yield (Setting(self.path, value, self.paths[self.path]),)


class Listed(Space):
    """Points that are written out."""

    def __init__(self, rows: Sequence[Point]) -> None:
        self.rows = rows
        self.paths = {item.path: item.origin for row in rows for item in row}

    def size(self) -> int:
        """See `Space.size`."""
        return len(self.rows)

    def points(self) -> Iterator[Point]:
        """See `Space.points`."""
        yield from self.rows


class Product(Space):
    """Every combination; the last part varies fastest.

    Arguments:
        parts: spaces that set different fields; none makes the one point that sets nothing.

    Raises:
        SetpointError: if two parts set the same field.
    """

    def __init__(self, parts: Sequence[Space]) -> None:
        self.parts = parts
        self.paths = together(parts)

    def size(self) -> int:
        """See `Space.size`."""
        return prod(part.size() for part in self.parts)

    def points(self) -> Iterator[Point]:
        """See `Space.points`."""
        for combined in product(*(part.points() for part in self.parts)):
            yield tuple(item for point in combined for item in point)


class Zip(Space):
    """Spaces of one size side by side: first with first, second with second.

    Arguments:
        parts: at least one; they set different fields.

    Raises:
        SetpointError: if their sizes differ, or two set the same field.
    """

    def __init__(self, parts: Sequence[Space]) -> None:
        self.parts = parts
        self.paths = together(parts)
        if len({part.size() for part in parts}) > 1:
            sizes = ", ".join(f"{'.'.join(next(iter(p.paths)))} has {p.size()}" for p in parts)
            raise SetpointError(f"the axes of a zip must have as many values each: {sizes}")

    def size(self) -> int:
        """See `Space.size`."""
        return self.parts[0].size()

    def points(self) -> Iterator[Point]:
        """See `Space.points`."""
        for side in zip(*(part.points() for part in self.parts), strict=True):
            yield tuple(item for point in side for item in point)


class Chain(Space):
    """The points of one space after those of another."""

    def __init__(self, parts: Sequence[Space]) -> None:
        self.parts = parts
        self.paths = {}
        for part in parts:
            self.paths.update(part.paths)

    def size(self) -> int:
        """See `Space.size`."""
        return sum(part.size() for part in self.parts)

    def points(self) -> Iterator[Point]:
        """See `Space.points`."""
        for part in self.parts:
            yield from part.points()


class Random(Space):
    """Points drawn from distributions, the same for the same seed everywhere.

    More points of the same seed begin with the fewer, and an axis more leaves the others alone.
    """

    def __init__(
        self, axes: Mapping[Path, tuple[Distribution, Origin]], count: int, seed: int
    ) -> None:
        self.axes = axes
        self.count = count
        self.seed = seed
        self.paths = {path: origin for path, (_, origin) in axes.items()}

    def size(self) -> int:
        """See `Space.size`."""
        return self.count

    def points(self) -> Iterator[Point]:
        """See `Space.points`."""
        for index in range(self.count):
            values: list[Setting] = []
            for path, (distribution, origin) in self.axes.items():
                value: Any = distribution.at(draw(self.seed, index, ".".join(path)))
                values.append(Setting(path, value, origin))
            yield tuple(values)


def together(parts: Sequence[Space]) -> dict[Path, Origin]:
    """The paths of several spaces, each a different field.

    Raises:
        SetpointError: if two set the same field.
    """
    found: dict[Path, Origin] = {}
    for part in parts:
        for path, origin in part.paths.items():
            if path in found:
                first, second = found[path].describe(path), origin.describe(path)
                both = f"{first} and {second}" if first != second else f"{first}, twice"
                raise SetpointError(f"{'.'.join(path)} is set by two parts of the sweep: {both}")
            found[path] = origin
    return found
