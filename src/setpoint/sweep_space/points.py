"""From the points of a sweep to resolved configurations, with all that is wrong in one report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from textwrap import indent
from typing import Generic, TypeVar

from setpoint.config import (
    Composition,
    Config,
    ConfigError,
    Editor,
    Problem,
    SetpointError,
    differences,
    draft_of,
    explain_foreign_keys,
    fingerprint,
    load_plugins,
    put_flags,
)
from setpoint.sweep_space.flags import CommandLine
from setpoint.sweep_space.naming import labels, name_of, value_text
from setpoint.sweep_space.setting import SOURCE, WITH, Point, Setting, split_points
from setpoint.sweep_space.space import Space

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


C = TypeVar("C", bound=Config)
LIMIT = 1000
Open = Callable[[str, tuple[str, ...], Setting | None], Composition[C]]
"""How many points a sweep may have, unless given."""

"""Composes a source with modifiers, without the overrides of the command line.

The last is the source that the file of the sweep is put on top of, where the file has that axis.
"""


class ResolvedPoint(Generic[C]):
    """One point, resolved."""

    def __init__(self, name: str, point: Point, config: C, fingerprint: str) -> None:
        self.name = name
        self.point = point
        self.config = config
        self.fingerprint = fingerprint


class Duplicate:
    """A point that learns what another one learns already."""

    def __init__(self, name: str, same_as: str, differing: list[str], given: str) -> None:
        self.name = name
        self.same_as = same_as
        self.differing = differing
        self.given = given

    def describe(self) -> str:
        """The duplicate in words."""
        if self.name == self.same_as:  # one value, perhaps in two spellings
            if self.given == self.same_as:
                return f"{self.name}: it comes twice"
            return f"{self.given}: the same as {self.same_as}"
        differ = ", ".join(self.differing)
        why = f"they differ in no identity field, only in {differ}"
        return f"{self.name}: the same as {self.same_as}" + (f"; {why}" if differ else "")


class Composer(Generic[C]):
    """Makes the configuration of a point, as its own command line would.

    Arguments:
        open: composes a source with modifiers; called once for each combination of the two.
        verify: the problems of a resolved configuration that only a look from outside finds.
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
        composition = Composition(draft, base.label, editor.problems)
        config = composition.resolve()
        problems = self._verify(config)
        if problems:
            raise ConfigError(problems)
        return config


class Points(Generic[C]):
    """All points of a sweep, every one of them sound."""

    def __init__(self, kept: list[ResolvedPoint[C]], duplicates: list[Duplicate]) -> None:
        self.kept = kept
        self.duplicates = duplicates


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
    found: dict[str, ResolvedPoint[C]] = {}
    duplicates: list[Duplicate] = []
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
        other = found.get(digest)
        if other is None:
            found[digest] = ResolvedPoint(name, point, config, digest)
        else:
            differing = [item.path for item in differences(other.config, config)]
            duplicates.append(Duplicate(name, other.name, differing, _as_given(point, short)))
    if wrong:
        raise SweepError(wrong, total)
    return Points(list(found.values()), duplicates)


def _as_given(point: Point, short: Mapping[tuple[str, ...], str]) -> str:
    parts = [
        f"{short[item.path]}="
        + (item.value if isinstance(item.value, str) else value_text(item.value))
        for item in point
    ]
    return ",".join(parts)


def _of_point(point: Point, error: SetpointError) -> Problem:
    axes = [item for item in point if item.path in ((SOURCE,), (WITH,))]
    named = next((item for item in axes if str(item.value) in str(error)), None)
    if named is None:
        return Statement(str(error))
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
    """What a point sets, for machines."""
    return {item.key: item.plain() for item in point}
