"""Running the checks of a tree: required values, ranges of items, marked methods, dead knobs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from .base import Config, chain_of, state_of, value_or_missing
from .errors import Invalid, UnresolvedError
from .field import MISSING, FieldInfo
from .hooks import CHECK, DEAD, CheckMark, Need
from .origin import DEFAULT, DERIVED, RECORD, Path
from .problem import Caution, Problem
from .types.base import shown_plain
from .walk import dotted


class Checker:
    """Looks for what is wrong with a tree whose values are all known.

    Arguments:
        placed: its sections with their paths, the root first.
        doubtful: the paths of values that are known to be wrong already.
    """

    def __init__(self, placed: list[tuple[Path, Config]], doubtful: set[str]) -> None:
        self.placed = placed
        self.doubtful = doubtful
        self.problems: list[Problem] = []
        self.cautions: list[Caution] = []

    def required(self) -> None:
        """Report every field that must have a value and has none."""
        for path, section in self.placed:
            for name, info in type(section).__setpoint__.fields.items():
                if not info.required and not info.derived:
                    continue
                here = dotted((*path, name))
                if here in self.doubtful or name in state_of(section).withheld:
                    continue
                if value_or_missing(section, name) is not MISSING:
                    continue
                reason = "is required and has no value"
                if info.derived:
                    reason = "must be set here: nothing in this configuration derives it"
                self.doubtful.add(here)
                self.problems.append(Problem(here, reason, hint=f"Expected {_expected(info)}."))

    def items(self) -> None:
        """Check the ranges of items, since a list may have been changed in place."""
        for path, section in self.placed:
            for name, info in type(section).__setpoint__.fields.items():
                if info.item_bounds is None or not chain_of(section, name):
                    continue
                value: Any = value_or_missing(section, name)
                try:
                    info.check(None if value is MISSING else value)
                except Invalid as error:
                    for part in error.parts:
                        relative = dotted((name, *part.at))
                        problem = Problem(relative, part.message)
                        self.problems.append(self._complete(path, section, problem))

    def run(self, able: Collection[Need] = ()) -> None:
        """Run every check that needs what is at hand.

        Arguments:
            able: what is at hand; without anything the checks that need nothing are run, and
                else those that need something.
        """
        seen: set[int] = set()
        for path, section in self.placed:
            if id(section) in seen:
                continue
            seen.add(id(section))
            info = type(section).__setpoint__
            for name in info.checks:
                needs = mark_of(section, name).needs
                if bool(needs) == bool(able) and set(needs) <= set(able):
                    self._one(path, section, name)
            for name in info.deads if not able else ():
                self._dead(path, section, getattr(section, name))

    def _one(self, path: Path, section: Config, name: str) -> None:
        try:
            for found in getattr(section, name)():
                problem = self._complete(path, section, found)
                if isinstance(problem, Caution):
                    declared = mark_of(section, name).cautions
                    assert problem.code in declared, f"{name} does not declare {problem.code}"
                    self.cautions.append(problem)
                else:
                    self.problems.append(problem)
        except UnresolvedError:
            # It reads a value that is itself reported as missing or wrong.
            return

    def _complete(self, path: Path, section: Config, problem: Problem) -> Problem:
        value, origin = describe(section, path, problem.path)
        also: list[str] = []
        for name in problem.also:
            other, where = describe(section, path, name)
            also.append(f"{dotted((*path, *name.split('.')))} = {other} ({where})")
        parts = tuple(part for part in problem.path.split(".") if part)
        return problem.placed(dotted((*path, *parts)), value, origin, also)

    def _dead(self, path: Path, section: Config, method: Callable[[], str | None]) -> None:
        try:
            reason = method()
        except UnresolvedError:
            return
        if not reason:
            return
        names: tuple[str, ...] = getattr(method, DEAD)
        for name in names:
            chain = chain_of(section, name)
            if not chain or chain[-1][0].layer in (DEFAULT, DERIVED, RECORD):
                continue
            # A complete file names every value; what it leaves at the default is no mistake.
            info = type(section).__setpoint__.fields[name]
            if not info.derived and not info.required and chain[-1][1] == info.initial():
                continue
            problem = Problem(name, f"has no effect: {reason}", hint="Remove it.")
            self.problems.append(self._complete(path, section, problem))


def describe(section: Config, path: Path, relative: str) -> tuple[str | None, str | None]:
    """A value and its origin as texts, by a path relative to a section.

    Arguments:
        section: where the path starts.
        path: the section's own path.
        relative: a dotted path, or the empty text for the section itself.

    Returns:
        the value and the origin; both None where the path leads to no value.
    """
    node: Any = section
    chain: Any = []
    here: Path = path
    for part in relative.split(".") if relative else ():
        here = (*here, part)
        if isinstance(node, Config):
            if part == "type":
                return type(node).__setpoint__.tag, None
            chain = chain_of(node, part) or chain
            try:
                node = getattr(node, part)
            except UnresolvedError:
                return None, None
        else:
            node = node[part if isinstance(node, dict) else int(part)]
    if node is section:
        return None, None
    origin = chain[-1][0].describe(here) if chain else "default"
    if isinstance(node, Config):
        return type(node).__setpoint__.tag, origin
    return shown_plain(node), origin


def _expected(info: FieldInfo) -> str:
    bounds = info.bounds.describe() if info.bounds else ""
    return info.type.describe() + (f", {bounds}" if bounds else "")


def mark_of(section: Config | type[Config], name: str) -> CheckMark:
    """What a check says about itself.

    Arguments:
        section: an instance or class that has it.
        name: the method's name.

    Returns:
        what `@check` was given.
    """
    return getattr(getattr(section, name), CHECK)
