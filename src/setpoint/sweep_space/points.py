"""Points of a sweep, resolved to configurations, with all problems in one report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from textwrap import indent
from typing import Any, Generic, NamedTuple, TypeVar

from setpoint.config import (
    Composition,
    Config,
    ConfigError,
    Editor,
    Problem,
    SetpointError,
    differences,
    draft_of,
    fingerprint,
)
from setpoint.config.layers.flags import put_flags
from setpoint.config.layers.presets import load_plugins
from setpoint.config.other_names import explain_foreign_keys
from setpoint.sweep_space.flags import CommandLine
from setpoint.sweep_space.setting import (
    SOURCE,
    WITH,
    Point,
    Setting,
    labels,
    name_of,
    split_points,
    value_text,
)
from setpoint.sweep_space.space import Space

C = TypeVar("C", bound=Config)
P = TypeVar("P", bound=Problem)
NAMED = 6
"""Names of points that are written out for a problem that several have."""
LIMIT = 1000
"""Maximum number of points of a sweep, unless given."""
Open = Callable[[str, tuple[str, ...], Setting | None], Composition[C]]
"""Composes a source with modifiers, without the overrides of the command line.

The last is the source that the file of the sweep is put on top of, where the file has that axis.
"""


class SweepError(ConfigError):
    """The problems of the points of a sweep, each with the points that have it.

    Arguments:
        total: how many points there are, those without problems included.
    """

    def __init__(self, problems: Mapping[str, Sequence[Problem]], total: int) -> None:
        self.by_point = dict(problems)
        self.total = total
        super().__init__([problem for several in problems.values() for problem in several])
        # One finding for each mistake, however many points share it.
        self.problems = tuple(PointProblem(problem, names) for problem, names in self.together())

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
        of = f"{wrong} of {self.total} points" if wrong < self.total else all_points(self.total)
        blocks = [f"{count} in {of}; nothing was started"]
        last: list[str] = []
        for problem, names in pairs:
            alone = len(pairs) == 1 and len(names) == self.total > 1  # the headline says it
            if names != last and not alone:
                blocks.append(f"in {format_points(names, self.total)}:")
                last = names
            is_message = not problem.path and not problem.hint
            blocks.append(indent(problem.message, "  ") if is_message else problem.render())
        return "\n\n".join(blocks)


def together(by_point: Mapping[str, Sequence[P]]) -> list[tuple[P, list[str]]]:
    """Findings that differ in the value alone as one, with the names of the points."""
    groups: dict[tuple[object, ...], tuple[list[P], list[str]]] = {}
    for name, problems in by_point.items():
        for problem in problems:
            facts = problem.path, problem.message, problem.origin, problem.valid, problem.also
            same, names = groups.setdefault((*facts, problem.hint, problem.value is None), ([], []))
            same.append(problem)
            if name not in names[-1:]:
                names.append(name)
    return [(_with_values(same), names) for same, names in groups.values()]


def _with_values(same: Sequence[P]) -> P:
    values = list(dict.fromkeys(str(problem.value) for problem in same))
    if len(values) == 1:
        return same[0]
    rest = f" and {len(values) - NAMED} more" if len(values) > NAMED else ""
    problem = copy(same[0])
    problem.value = ", ".join(values[:NAMED]) + rest
    return problem


def format_points(names: Sequence[str], total: int) -> str:
    """The names of some points of a sweep, or for instance `all 4 points`."""
    if len(names) == total and total > 1:
        return all_points(total)
    rest = f"; and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return "; ".join(names[:NAMED]) + rest


def all_points(total: int) -> str:
    """All points of a sweep, for instance `both points`."""
    return {1: "the only point", 2: "both points"}.get(total, f"all {total} points")


class PointProblem(Problem):
    """A problem with the names of the points that have it."""

    __slots__ = ("points",)

    def __init__(self, problem: Problem, points: Sequence[str]) -> None:
        for name in Problem.__slots__:
            setattr(self, name, getattr(problem, name))
        self.points = tuple(points)

    def to_json(self) -> dict[str, object]:
        """See `Problem.to_json`."""
        return {**super().to_json(), "points": list(self.points)}


class ResolvedPoint(NamedTuple, Generic[C]):
    """One point, resolved."""

    name: str
    point: Point
    config: C
    fingerprint: str


class DuplicatePoint(NamedTuple):
    """A point with the fingerprint of an earlier point.

    Arguments:
        given: the point as written.
    """

    name: str
    same_as: str
    differing: list[str]
    given: str

    def describe(self) -> str:
        """The duplicate as a sentence."""
        if self.name == self.same_as:  # one value, perhaps in two spellings
            if self.given == self.same_as:
                return f"{self.name}: it comes twice"
            return f"{self.given}: the same as {self.same_as}"
        differ = ", ".join(self.differing)
        why = f"they differ in no identity field, only in {differ}"
        return f"{self.name}: the same as {self.same_as}" + (f"; {why}" if differ else "")

    def to_json(self) -> dict[str, Any]:
        """The duplicate for machines."""
        return {"name": self.name, "same_as": self.same_as, "differing": self.differing}


class Points(NamedTuple, Generic[C]):
    """All points of a sweep, each with a valid configuration."""

    kept: list[ResolvedPoint[C]]
    duplicates: list[DuplicatePoint]


class Composer(Generic[C]):
    """Makes the configuration of a point, as its own command line would.

    Arguments:
        open: composes a source with modifiers; called once for each combination of the two.
        verify: returns the problems of a resolved configuration that need more than its values.
    """

    def __init__(
        self,
        open: Open[C],
        line: CommandLine,
        finish: Callable[[C], None] = lambda _: None,
        verify: Callable[[C], Sequence[Problem]] = lambda _: (),
    ) -> None:
        self._open = open
        self._line = line
        self._finish = finish
        self._verify = verify
        self._bases: dict[tuple[str, tuple[str, ...], str | None], Composition[C]] = {}

    def base(self, point: Point = ()) -> Composition[C]:
        """The layers below the overrides.

        Arguments:
            point: what the point sets; its source and modifiers count.

        Returns:
            the composition; the same object for the same source and modifiers.
        """
        chosen = {item.path: item for item in point}
        source, below = self._line.source, chosen.get((SOURCE,))
        if source is None:
            source, below = "" if below is None else str(below.value), None
        modifiers: list[str] = []
        axis = _words(chosen.get((WITH,)))
        if None not in self._line.modifiers:
            # The axis is in a file, and files are data.
            _refuse_imports(axis)
            modifiers.extend(axis)
        for text in self._line.modifiers:
            modifiers.extend(axis if text is None else [text])
        key = source, tuple(modifiers), None if below is None else repr(below.plain())
        if key not in self._bases:
            self._bases[key] = self._open(source, tuple(modifiers), below)
        return self._bases[key]

    def resolve(self, point: Point) -> C:
        """The configuration of a point.

        Raises:
            ConfigError: with all that is wrong with it.
        """
        chosen = {item.path: item for item in point}
        base = self.base(point)
        draft = draft_of(base.draft)
        editor = Editor(draft)
        editor.problems = list(base.problems)
        fields = {path: item for path, item in chosen.items() if path not in ((SOURCE,), (WITH,))}
        put_flags(editor, self._line.flags_of(fields))
        explain_foreign_keys(editor)
        self._finish(draft)
        composition = Composition(draft, base.label, editor.problems, [])
        config = composition.resolve()
        problems = self._verify(config)
        if problems:
            raise ConfigError(problems)
        return config


def resolve_points(space: Space, composer: Composer[C], limit: int = LIMIT) -> Points[C]:
    """Resolve and check every point before anything is done with one.

    Raises:
        SetpointError: if there are too many.
        SweepError: with the problems of all points.
    """
    refuse_too_many(space.size(), limit)
    try:
        return _resolve(space, composer)
    except SetpointError:
        # What is not known may be what an installed package brings.
        if not load_plugins():
            raise
    return _resolve(space, composer)


def refuse_too_many(size: int, limit: int) -> None:
    """Refuse a sweep that is larger than its limit.

    Raises:
        SetpointError: if there are more.
    """
    if size > limit:
        # A number too long to read is no answer.
        count = f"{size:,}" if size < 10**15 else f"about 10^{len(str(size)) - 1}"
        raise SetpointError(
            f"this sweep has {count} points, and at most {limit:,} are taken; give fewer values, "
            f"draw some of the points at random, or raise the limit with --limit"
        )


def _resolve(space: Space, composer: Composer[C]) -> Points[C]:
    short = labels(space.paths)
    kept: dict[str, ResolvedPoint[C]] = {}
    duplicates: list[DuplicatePoint] = []
    wrong: dict[str, list[Problem]] = {}
    total = 0
    for point in space.points():
        total += 1
        name = name_of(point, short)
        try:
            config = composer.resolve(point)
        except ConfigError as error:
            wrong.setdefault(name, []).extend(error.problems)
            continue
        except SetpointError as error:
            # A source that is not there, a modifier that cannot be called.
            wrong.setdefault(name, []).append(_of_point(point, error))
            continue
        digest = fingerprint(config)
        other = kept.setdefault(digest, ResolvedPoint(name, point, config, digest))
        if other.config is not config:
            given = ",".join(
                f"{short[item.path]}="
                + (item.value if isinstance(item.value, str) else value_text(item.value))
                for item in point
            )
            differing = [item.path for item in differences(other.config, config)]
            duplicates.append(DuplicatePoint(name, other.name, differing, given))
    if wrong:
        raise SweepError(wrong, total)
    return Points(list(kept.values()), duplicates)


def _of_point(point: Point, error: SetpointError) -> Problem:
    axes = [item for item in point if item.path in ((SOURCE,), (WITH,))]
    named = next((item for item in axes if str(item.value) in str(error)), None)
    if named is None:
        return Problem("", str(error))
    origin = named.origin.describe(named.path)
    return Problem(named.key, str(error), value=str(named.value), origin=origin)


def _words(setting: Setting | None) -> list[str]:
    """The modifiers of a value of their axis: none, one, or several in brackets."""
    if setting is None or setting.value is None or setting.value == "null":
        return []
    if isinstance(setting.value, list | tuple):
        return [str(item) for item in setting.plain()]
    text = str(setting.value)
    if text.startswith("[") and text.endswith("]"):
        return [part for part in split_points(text[1:-1]) if part]
    return [text]


def _refuse_imports(modifiers: Sequence[str]) -> None:
    for text in modifiers:
        if ":" in text.partition("(")[0]:
            raise SetpointError(
                f"{text!r} would be imported, and a file imports nothing; give it by --with, or "
                f"register the function as a modifier and name its module by --import"
            )


def mapping_of(point: Point) -> Mapping[str, object]:
    """The values of a point by key, as plain data."""
    return {item.key: item.plain() for item in point}
