"""From a draft to a resolved config: references, derived values, checks, and the freeze."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from .base import Config, chain_of, state_of, value_or_missing, withhold
from .copying import draft_of, frozen_value
from .determine import Determination
from .errors import Invalid, UnresolvedError
from .field import MISSING, FieldInfo
from .hooks import DEAD
from .origin import DEFAULT, DERIVED, RECORD, Path
from .problem import ConfigError, Problem
from .types.base import shown_plain
from .walk import dotted, sections

C = TypeVar("C", bound=Config)


def resolve(
    draft: C,
    *,
    problems: Sequence[Problem] = (),
    failed: Sequence[str] = (),
) -> C:
    """Determine every value, check everything, and freeze a copy.

    Arguments:
        draft: the configuration with all layers merged; it is not changed.
        problems: what is already known to be wrong, reported together with the rest.
        failed: the paths of values that could not be set; nothing is concluded from them.

    Returns:
        a frozen, hashable config with a value for every field.

    Raises:
        ConfigError: with every problem at once.
    """
    root = draft_of(draft)
    placed = [(path, section) for path, section in sections(root)]
    if failed:
        placed = _withhold(placed, failed)
    determination = Determination(root, placed)
    determination.run()
    found = [*problems, *determination.problems]
    doubtful = {*failed, *determination.failed}
    checker = _Checker(placed, doubtful)
    checker.required()
    checker.items()
    checker.run()
    found.extend(checker.problems)
    if found:
        raise ConfigError(found)
    for _, section in placed:
        _freeze(section)
    return root


def _withhold(
    placed: list[tuple[Path, Config]], failed: Sequence[str]
) -> list[tuple[Path, Config]]:
    """Make what failed unreadable; the sections that still count are returned."""
    dropped: set[Path] = set()
    by_path = {dotted(path): section for path, section in placed}
    for whole in failed:
        path = whole
        # A part of a value that is wrong, such as an item of a list, makes the whole field so.
        while path:
            parent, _, name = path.rpartition(".")
            section = by_path.get(parent)
            if section is not None and name in type(section).__setpoint__.fields:
                # A section stays, with all that is right in it, unless it is of an unknown variant.
                if not isinstance(value_or_missing(section, name), Config):
                    withhold(section, name)
                elif whole == f"{path}.type":
                    withhold(section, name)
                    dropped.add(tuple(path.split(".")))
                break
            path = parent
    return [
        (path, section)
        for path, section in placed
        if not any(tuple(map(str, path[: len(gone)])) == gone for gone in dropped)
    ]


class _Checker:
    def __init__(self, placed: list[tuple[Path, Config]], doubtful: set[str]) -> None:
        self.placed = placed
        self.doubtful = doubtful
        self.problems: list[Problem] = []

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

    def run(self) -> None:
        """Run every check of every section."""
        seen: set[int] = set()
        for path, section in self.placed:
            if id(section) in seen:
                continue
            seen.add(id(section))
            info = type(section).__setpoint__
            for name in info.checks:
                self._one(path, section, getattr(section, name))
            for name in info.deads:
                self._dead(path, section, getattr(section, name))

    def _one(self, path: Path, section: Config, check: Callable[[], Any]) -> None:
        try:
            for problem in check():
                self.problems.append(self._complete(path, section, problem))
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
        return Problem(
            dotted((*path, *parts)),
            problem.message,
            valid=problem.valid,
            also=also,
            hint=problem.hint,
            value=value,
            origin=origin,
        )

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


def _freeze(section: Config) -> None:
    for name in type(section).__setpoint__.fields:
        value = getattr(section, name)
        # Filled slots also make later reads plain attribute reads.
        object.__setattr__(section, name, frozen_value(value))
    state_of(section).frozen = True
