"""Running the checks of a tree: required values, ranges of items, and the marked methods."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from .base import Config, chain_of, is_frozen, origins_of, state_of, value_or_missing
from .errors import Invalid, UnresolvedError
from .field import MISSING, FieldInfo
from .findings import findings_of
from .free import Free
from .hooks import CHECK, CheckMark, Need
from .origin import Path
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
        # A section that was taken over as it is has passed; only what is said again counts.
        self.passed = {id(section) for _, section in placed if is_frozen(section)}

    def required(self) -> None:
        """Report every field that must have a value and has none."""
        for path, section in self.placed:
            if is_frozen(section):
                continue
            for name, info in type(section).__setpoint__.fields.items():
                if info.constant or info.factory is not None:
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
            if is_frozen(section):
                continue
            origins = origins_of(section)
            for name, info in type(section).__setpoint__.fields.items():
                if info.item_bounds is None or name not in origins:
                    continue
                value: Any = value_or_missing(section, name)
                try:
                    info.check(None if value is MISSING else value)
                except Invalid as error:
                    for part in error.parts:
                        relative = dotted((name, *part.at))
                        problem = Problem(relative, part.message)
                        self.problems.append(whole_problem(path, section, problem))

    def run(self, able: Collection[Need] = (), unread: Collection[str] = ()) -> None:
        """Run every check that needs what is at hand.

        Arguments:
            able: what is at hand; without anything the checks that need nothing are run, and
                else those that need something.
            unread: top sections whose checks that need files are left out.
        """
        seen: set[int] = set()
        for path, section in self.placed:
            if id(section) in seen:
                continue
            seen.add(id(section))
            passed = id(section) in self.passed and not able
            for name in type(section).__setpoint__.checks:
                mark = mark_of(section, name)
                if passed and not mark.cautions:
                    continue
                if bool(mark.needs) != bool(able) or not set(mark.needs) <= set(able):
                    continue
                if "files" in mark.needs and path and path[0] in unread:
                    continue
                if mark.when is None or mark.when(section):
                    self._one(path, section, name)

    def _one(self, path: Path, section: Config, name: str) -> None:
        for found in findings_of(section, name, mark_of(section, name).cautions):
            problem = whole_problem(path, section, found)
            if isinstance(problem, Caution):
                self.cautions.append(problem)
            else:
                self.problems.append(problem)


def whole_problem(path: Path, section: Config, problem: Problem) -> Problem:
    """A finding about a section as the report shows it.

    Arguments:
        path: the section's path.
        section: the section.
        problem: the finding, with paths relative to the section.

    Returns:
        the finding with whole paths, values and origins.
    """
    value, origin = describe(section, path, problem.path)
    also: list[str] = []
    for name in problem.also:
        other, where = describe(section, path, name)
        also.append(f"{dotted((*path, *name.split('.')))} = {other} ({where})")
    parts = tuple(part for part in problem.path.split(".") if part)
    return problem.placed(dotted((*path, *parts)), value, origin, also)


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
    parts = relative.split(".") if relative else []
    while parts:
        part, keys = parts.pop(0), node
        while isinstance(keys, dict) and part not in keys and parts:
            part = f"{part}.{parts.pop(0)}"  # keys of a mapping may have dots of their own
        here = (*here, part)
        if isinstance(node, Config):
            if part == "type":
                return type(node).__setpoint__.tag, None
            chain = chain_of(node, part)
            try:
                node = getattr(node, part)
            except (UnresolvedError, AttributeError):
                return None, None
        elif isinstance(node, Free):
            held = dict(node.items())
            if part not in held:
                return None, None
            chain = node.chain(part) or chain
            node = held[part]
        else:
            try:
                node = node[part if isinstance(node, dict) else int(part)]
            except (LookupError, TypeError, ValueError):
                return None, None
    if node is section:
        return None, None
    origin = chain[-1][0].describe(here) if chain else "default"
    if isinstance(node, Config):
        return type(node).__setpoint__.tag, origin
    if isinstance(node, Free):
        origin = _origins_inside(node, here) or origin
    return shown_plain(node), origin


def _origins_inside(area: Free, path: Path) -> str:
    """Where the keys of an area come from: only they have been set, not the area."""
    found: list[str] = []
    for key, value in area.items():
        if isinstance(value, Free):
            found.append(_origins_inside(value, (*path, key)))
        elif chain := area.chain(key):
            found.append(chain[-1][0].describe((*path, key)))
    return ", ".join(dict.fromkeys(filter(None, found)))


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
