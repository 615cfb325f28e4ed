"""All that is wrong with all points of a sweep, in one report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from textwrap import indent
from typing import TypeVar

from setpoint.config import ConfigError, Problem

NAMED = 6  # names of points that are written out for a problem that several have
P = TypeVar("P", bound=Problem)


class SweepError(ConfigError):
    """The problems of the points of a sweep, each with the points that have it.

    Arguments:
        total: how many points there are, those without problems included.
    """

    def __init__(self, problems: Mapping[str, Sequence[Problem]], total: int) -> None:
        self.by_point = dict(problems)
        self.total = total
        super().__init__([problem for found in problems.values() for problem in found])
        # One finding for each mistake, however many points share it.
        self.problems = tuple(_with_points(problem, names) for problem, names in self.together())

    def __reduce__(self) -> tuple[type[SweepError], tuple[dict[str, Sequence[Problem]], int]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return type(self), (self.by_point, self.total)

    def together(self) -> list[tuple[Problem, list[str]]]:
        """Each mistake once, with the names of the points that have it.

        Returns:
            pairs in the order in which they were found, those of most points first.
        """
        return sorted(together(self.by_point), key=lambda pair: -len(pair[1]))

    def render(self) -> str:
        """See `ConfigError.render`."""
        pairs = self.together()
        count = f"{len(pairs)} problem{'s' * (len(pairs) != 1)}"
        wrong = len(self.by_point)
        of = f"{wrong} of {self.total} points" if wrong < self.total else every(self.total)
        blocks = [f"{count} in {of}; nothing was started"]
        last: list[str] = []
        for problem, names in pairs:
            alone = len(pairs) == 1 and len(names) == self.total > 1  # the headline says it
            if names != last and not alone:
                blocks.append(f"in {points_in_words(names, self.total)}:")
                last = names
            blocks.append(problem.render())
        return "\n\n".join(blocks)


def together(by_point: Mapping[str, Sequence[P]]) -> list[tuple[P, list[str]]]:
    """Findings that differ in the value alone as one, with the names of the points."""
    found: dict[tuple[object, ...], tuple[list[P], list[str]]] = {}
    for name, problems in by_point.items():
        for problem in problems:
            same, names = found.setdefault(_but_for_the_value(problem), ([], []))
            same.append(problem)
            if name not in names[-1:]:
                names.append(name)
    return [(_with_values(same), names) for same, names in found.values()]


def _but_for_the_value(problem: Problem) -> tuple[object, ...]:
    rest = problem.valid, problem.also, problem.hint, problem.value is None
    return problem.path, problem.message, problem.origin, *rest


def _with_values(same: Sequence[P]) -> P:
    values = list(dict.fromkeys(str(problem.value) for problem in same))
    if len(values) == 1:
        return same[0]
    rest = f" and {len(values) - NAMED} more" if len(values) > NAMED else ""
    whole = copy(same[0])
    whole.value = ", ".join(values[:NAMED]) + rest
    return whole


def points_in_words(names: Sequence[str], total: int) -> str:
    """Some of the points of a sweep.

    Returns:
        the names, or for instance `all 4 points`.
    """
    if len(names) == total and total > 1:
        return every(total)
    rest = f"; and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return "; ".join(names[:NAMED]) + rest


def every(total: int) -> str:
    """All points of a sweep in words.

    Returns:
        for instance `both points`.
    """
    return {1: "the only point", 2: "both points"}.get(total, f"all {total} points")


class Statement(Problem):
    """What another error says, shown as it is.

    Arguments:
        text: its words, perhaps several lines.
    """

    __slots__ = ()

    def __init__(self, text: str) -> None:
        super().__init__("", text)

    def render(self, valid: bool = True) -> str:
        """See `Problem.render`."""
        return indent(self.message, "  ")


class PointProblem(Problem):
    """A problem with the names of the points that have it."""

    __slots__ = ("points",)

    points: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """See `Problem.to_json`."""
        return {**super().to_json(), "points": list(self.points)}


def _with_points(problem: Problem, names: Sequence[str]) -> PointProblem:
    found = PointProblem(
        problem.path,
        problem.message,
        valid=problem.valid,
        also=problem.also,
        hint=problem.hint,
        value=problem.value,
        origin=problem.origin,
    )
    found.points = tuple(names)
    return found
