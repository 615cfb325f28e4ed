"""The mesh of a job: which coordinates a rank has, and which ranks an axis joins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

SHOWN = 8
"""Ranks of a line of the drawing, at most."""


def coordinates(degrees: Mapping[str, int], rank: int) -> dict[str, int]:
    """Where a rank lies on each axis, the first of which is the outermost."""
    found: dict[str, int] = {}
    left = prod(degrees.values())
    for axis, degree in degrees.items():
        left //= degree
        found[axis] = rank // left % degree
    return found


def stride(degrees: Mapping[str, int], axis: str) -> int:
    """How far apart, in numbers of ranks, neighbours on an axis are."""
    names = list(degrees)
    return prod(degrees[name] for name in names[names.index(axis) + 1 :])


def span(degrees: Mapping[str, int], axes: Sequence[str]) -> int:
    """How many ranks, one after another, hold any group of ranks that some axes join."""
    return 1 + sum((degrees[axis] - 1) * stride(degrees, axis) for axis in axes)


def index_along(degrees: Mapping[str, int], axes: Sequence[str], rank: int) -> int:
    """The number of a rank among those that differ from it on these axes only."""
    at, found = coordinates(degrees, rank), 0
    for axis, degree in degrees.items():
        if axis in axes:
            found = found * degree + at[axis]
    return found


def members(degrees: Mapping[str, int], axes: Sequence[str], rank: int) -> list[int]:
    """The ranks that differ from one on some axes only, itself among them, in order."""
    at = coordinates(degrees, rank)
    first = rank - sum(at[axis] * stride(degrees, axis) for axis in axes)
    found = [first]
    for axis, degree in degrees.items():
        if axis in axes:
            step = stride(degrees, axis)
            found = [each + n * step for each in found for n in range(degree)]
    return found


def draw(degrees: Mapping[str, int], rank: int) -> list[tuple[str, str, str, str]]:
    """Draw the mesh around a rank, outermost axis first; axes of one rank are left out.

    Returns:
        rows of the axis, its degree, the rank's coordinate, and the ranks that it joins this rank
        with, of which the middle ones of many are left out.
    """
    at = coordinates(degrees, rank)
    rows: list[tuple[str, str, str, str]] = []
    for axis, degree in degrees.items():
        if degree == 1:
            continue
        step = stride(degrees, axis)
        first = rank - at[axis] * step
        shown = [_marked(first + n * step, rank) for n in _some(degree, at[axis])]
        rows.append((axis, f"{degree:,}", f"{at[axis]:,}", " ".join(shown)))
    return rows


def _marked(number: int, rank: int) -> str:
    return f"[{number}]" if number == rank else str(number) if number >= 0 else "..."


def _some(count: int, own: int) -> list[int]:
    """The first, the last and those around one's own; a gap is a number far below zero."""
    if count <= SHOWN:
        return list(range(count))
    near = sorted({0, 1, max(0, own - 1), own, min(count - 1, own + 1), count - 1})
    gap = -(10**12)
    found: list[int] = []
    for number in near:
        if found and number != found[-1] + 1:
            found.append(gap)
        found.append(number)
    return found
