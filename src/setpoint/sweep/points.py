"""The axes of a command line, and the resolved points of a sweep with all their problems."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from textwrap import indent
from typing import Any, Generic, NamedTuple, TypeVar

from setpoint.config import (
    Caution,
    Composition,
    Config,
    ConfigError,
    Editor,
    Invalid,
    Problem,
    SetpointError,
    differences,
    draft_of,
    fingerprint,
    plural,
)
from setpoint.config.draft.walk import dropped_values
from setpoint.config.layers.flags import Flag, put_flags, read_flags
from setpoint.config.layers.presets import load_plugins
from setpoint.config.layers.presets import modifiers as known_modifiers
from setpoint.config.other_names import explain_foreign_keys
from setpoint.config.schema.class_info import classes_at, field_of
from setpoint.config.values.node import Node
from setpoint.sweep.setting import (
    SOURCE,
    WITH,
    Point,
    Setting,
    axis_origin,
    labels,
    name_of,
    path_of,
    point_value,
    split_points,
    value_text,
)
from setpoint.sweep.space import Axis, Drawn, Space, is_call, misspelt_call
from setpoint.sweep.sweep_file import TABLE


class SweepCommandLine:
    """A command line, split into axes and overrides with one value.

    Arguments:
        source: the source; None if it is an axis.
        modifiers: modifiers in order; None stands for the axis of modifiers.
        flags: overrides in order; a path stands for the axis of that field.
    """

    def __init__(self) -> None:
        self.source: str | None = None
        self.modifiers: list[str | None] = []
        self.flags: list[Flag | tuple[str, ...]] = []
        self.axes: list[Axis] = []
        self.drawn: dict[tuple[str, ...], tuple[Drawn, str]] = {}

    @property
    def fixed(self) -> dict[tuple[str, ...], str]:
        """The fields that have a single value, with the override as typed."""
        return {path_of(".".join(f.path)): f.label for f in self.flags if isinstance(f, Flag)}

    def flags_of(self, chosen: Mapping[tuple[str, ...], Setting]) -> list[Flag]:
        """The overrides of one point: from files first, then those typed, in their order."""
        typed_paths = {entry for entry in self.flags if isinstance(entry, tuple)}
        chosen_flags = [item.flag() for path, item in chosen.items() if path not in typed_paths]
        typed = [
            entry if isinstance(entry, Flag) else chosen[entry].flag()
            for entry in self.flags
            if isinstance(entry, Flag) or entry in chosen
        ]
        return [*chosen_flags, *typed]


def read_command_line(
    root: type[Node], source: str, modifiers: Sequence[str], tokens: Sequence[str]
) -> SweepCommandLine:
    """Split a command line into the axes of a sweep and plain overrides.

    Raises:
        SetpointError: an override cannot be read, or a field is varied twice.
    """
    line = SweepCommandLine()
    # A file may have a comma in its name.
    sources = [source] if os.path.exists(source) else split_points(source)
    if len(sources) == 1:
        line.source = source
    else:
        _add_axis(line, (SOURCE,), sources, "SOURCE")
    for text in modifiers:
        parts = split_points(text)
        drawn = is_call(text) and text.partition("(")[0].strip() not in known_modifiers
        if len(parts) == 1 and not drawn:
            line.modifiers.append(text)
            continue
        if None in line.modifiers:
            raise SetpointError(
                "--with occurs twice with a list of values; give all values in one list"
            )
        line.modifiers.append(None)
        if drawn:
            _add_drawn(line, (WITH,), Flag((WITH,), text, "--with"))
        else:
            _add_axis(line, (WITH,), parts, "--with")
    for flag in read_flags(root, tokens):
        parts = split_points(flag.text)
        path = path_of(".".join(flag.path))
        if len(parts) > 1:
            _refuse_bare_lists(root, flag, parts)
            line.flags.append(path)
            _add_axis(line, path, parts, flag.label)
        elif is_call(flag.text):
            line.flags.append(path)
            _add_drawn(line, path, flag)
        else:
            line.flags.append(flag)
    _refuse_fixed(line)
    return line


def _add_axis(line: SweepCommandLine, path: tuple[str, ...], parts: list[str], label: str) -> None:
    if any(axis.path == path for axis in line.axes):
        raise SetpointError(
            f"{label} occurs twice with a list of values; give all values in one list"
        )
    try:
        values = [point_value(part) for part in parts]
    except SetpointError as error:
        raise SetpointError(f"{label} {','.join(parts)}: {error}") from None
    line.axes.append(Axis(path, values, axis_origin(label)))


def _add_drawn(line: SweepCommandLine, path: tuple[str, ...], flag: Flag) -> None:
    if path in line.drawn:
        raise SetpointError(f"{flag.label} has two distributions; remove one of them")
    try:
        line.drawn[path] = (Drawn.read(flag.text), flag.label)
    except Invalid as error:
        raise SetpointError(f"{flag.label} {flag.text}: {explain(error)}") from None


def explain(error: Invalid) -> str:
    """Format the problems of a value as one line."""
    return "; ".join(f"{'.'.join(map(str, p.at))} {p.sentence}".strip() for p in error.parts)


def refuse_misspelt_distributions(line: SweepCommandLine) -> None:
    """Refuse an override that resembles a distribution, in a sweep that draws values.

    Raises:
        SetpointError: suggests the likely intended distribution.
    """
    for flag in line.flags:
        if isinstance(flag, Flag):
            meant = misspelt_call(flag.text)
            if meant:
                raise SetpointError(f"{flag.label} {flag.text} is not a distribution. {meant}")


def _refuse_fixed(line: SweepCommandLine) -> None:
    """Refuse a field that is both varied and fixed."""
    fixed = line.fixed
    for path in [*(axis.path for axis in line.axes), *line.drawn]:
        if path in fixed:
            raise SetpointError(
                f"{'.'.join(path)} is varied and also set to one value ({fixed[path]}); remove "
                f"one of them"
            )


def _refuse_bare_lists(root: type[Node], flag: Flag, parts: list[str]) -> None:
    """Refuse `--optimizer.betas 0.9,0.95`: elsewhere it is one list, but in a sweep two points."""
    names = path_of(".".join(flag.path))
    infos = [field_of(owner, names[-1]) for owner in classes_at(root, names[:-1])]
    kinds = [info.type for info in infos if info is not None]
    # If a text or data is valid, too, items without brackets are not a list.
    if not kinds or not all(kind.lists_items(",") for kind in kinds):
        return
    if all(part[:1] in ("[", "{", "") or part == "null" or "${" in part for part in parts):
        return
    text = ",".join(parts)
    raise SetpointError(
        f"{flag.label} {text}: commas separate points, but this field is a list; write each list "
        f"in brackets: {flag.label} '[{text}]' is one list, and "
        f"{flag.label} '[{parts[0]}],[{parts[1]}]' is two points"
    )


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
    """The problems of a sweep's points, each with the points that have it."""

    def __init__(self, problems: Mapping[str, Sequence[Problem]], total: int) -> None:
        self.by_point = dict(problems)
        self.total = total
        super().__init__([problem for several in problems.values() for problem in several])
        # One finding per mistake, even if several points share it.
        self.problems = tuple(PointProblem(problem, names) for problem, names in self.together())

    def __reduce__(self) -> tuple[type[SweepError], tuple[dict[str, Sequence[Problem]], int]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return type(self), (self.by_point, self.total)

    def together(self) -> list[tuple[Problem, list[str]]]:
        """Each problem once, with the names of its points; those of most points first."""
        return sorted(together(self.by_point), key=lambda pair: -len(pair[1]))

    def render(self) -> str:
        pairs = self.together()
        count = plural(len(pairs), "problem")
        wrong = len(self.by_point)
        scope = f"{wrong} of {self.total} points" if wrong < self.total else all_points(self.total)
        blocks = [f"{count} in {scope}; nothing was started"]
        last: list[str] = []
        for problem, names in pairs:
            alone = len(pairs) == 1 and len(names) == self.total > 1  # the headline has it
            if names != last and not alone:
                blocks.append(f"in {format_points(names, self.total)}:")
                last = names
            is_message = not problem.path and not problem.hint
            blocks.append(indent(problem.message, "  ") if is_message else problem.render())
        return "\n\n".join(blocks)


def together(by_point: Mapping[str, Sequence[P]]) -> list[tuple[P, list[str]]]:
    """Merge findings that differ only in the value, with the names of the points."""
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
    more = f" and {len(values) - NAMED} more" if len(values) > NAMED else ""
    problem = copy(same[0])
    problem.value = ", ".join(values[:NAMED]) + more
    return problem


def format_points(names: Sequence[str], total: int) -> str:
    """The names of some points of a sweep, or for example `all 4 points`."""
    if len(names) == total and total > 1:
        return all_points(total)
    more = f"; and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return "; ".join(names[:NAMED]) + more


def all_points(total: int) -> str:
    """All points of a sweep, for example `both points`."""
    return {1: "the only point", 2: "both points"}.get(total, f"all {total} points")


class PointProblem(Problem):
    """A problem with the names of the points that have it."""

    __slots__ = ("points",)

    def __init__(self, problem: Problem, points: Sequence[str]) -> None:
        for name in Problem.__slots__:
            setattr(self, name, getattr(problem, name))
        self.points = tuple(points)

    def to_json(self) -> dict[str, object]:
        return {**super().to_json(), "points": list(self.points)}


class ResolvedPoint(NamedTuple, Generic[C]):
    """One point, resolved."""

    name: str
    point: Point
    config: C
    fingerprint: str


class PointNote(NamedTuple):
    """A note about several points; `kind` is `caution` or `dropped`."""

    kind: str
    points: list[str]
    text: str
    where: str

    def render(self) -> str:
        """The note as text."""
        between = "\n\n" if "\n" in self.text else "\n  "
        return f"{self.kind} in {self.where}:{between}{self.text}"

    def to_json(self) -> dict[str, object]:
        """The note as JSON."""
        return {"points": self.points, "text": self.text.strip()}


class PointChecker(Generic[C]):
    """Runs further checks on each point, and collects the cautions.

    The configurations are also kept, because they are distinguished by identity.
    """

    def __init__(self, look: Callable[[C], tuple[list[Problem], list[Caution]]]) -> None:
        self._look = look
        self._cautions: dict[int, tuple[C, list[Caution]]] = {}

    def __call__(self, config: C) -> Sequence[Problem]:
        """The problems of one point."""
        problems, cautions = self._look(config)
        self._cautions[id(config)] = config, cautions
        return problems

    def notes(self, points: Sequence[ResolvedPoint[C]]) -> list[PointNote]:
        """Notes about valid points."""
        total = len(points)
        notes: list[PointNote] = []
        lost: dict[str, list[str]] = {}
        cautions: dict[tuple[str, str], dict[str, list[Caution]]] = {}
        for point in points:
            for line in dropped_values(point.config):
                lost.setdefault(line, []).append(point.name)
            for caution in self._cautions[id(point.config)][1]:
                same = cautions.setdefault((caution.code, caution.path), {})
                same.setdefault(point.name, []).append(caution)
        for line, names in lost.items():
            notes.append(PointNote("dropped", names, line, format_points(names, total)))
        for by_point in cautions.values():
            # If the numbers differ between points, those of one point represent all.
            (first, names), *remaining = together(by_point)
            where = format_points(list(by_point), total)
            if remaining:
                where += f"; for {names[0]}"
            notes.append(PointNote("caution", list(by_point), first.render(), where))
        return notes


class DuplicatePoint(NamedTuple):
    """A point with the fingerprint of an earlier point; `given` is the point as written."""

    name: str
    same_as: str
    differing: list[str]
    given: str

    def describe(self) -> str:
        """The duplicate as a sentence."""
        if self.name == self.same_as:  # one value, perhaps in two notations
            if self.given == self.same_as:
                return f"{self.name}: it appears twice"
            return f"{self.given}: the same as {self.same_as}"
        differ = ", ".join(self.differing)
        why = f"they differ in no identity field, only in {differ}"
        return f"{self.name}: the same as {self.same_as}" + (f"; {why}" if differ else "")

    def to_json(self) -> dict[str, Any]:
        """The duplicate as JSON."""
        return {"name": self.name, "same_as": self.same_as, "differing": self.differing}


class Points(NamedTuple, Generic[C]):
    """All points of a sweep, each with a valid configuration."""

    kept: list[ResolvedPoint[C]]
    duplicates: list[DuplicatePoint]


class Composer(Generic[C]):
    """Composes the configuration of a point, as its own command line would.

    Arguments:
        open: composes a source with modifiers; called once for each combination.
        verify: returns the problems of a resolved configuration that need more than its values.
    """

    def __init__(
        self,
        open: Open[C],
        line: SweepCommandLine,
        finish: Callable[[C], None] = lambda _: None,
        verify: Callable[[C], Sequence[Problem]] = lambda _: (),
    ) -> None:
        self._open = open
        self._line = line
        self._finish = finish
        self._verify = verify
        self._bases: dict[tuple[str, tuple[str, ...], str | None], Composition[C]] = {}

    def base(self, point: Point = ()) -> Composition[C]:
        """The layers below the overrides; the same object for the same source and modifiers."""
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
            ConfigError: lists all problems of the configuration.
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
    """Resolve and check all points before any is started.

    Raises:
        SetpointError: there are too many points.
        SweepError: lists the problems of all points.
    """
    refuse_too_many(space.size(), limit)
    try:
        return _resolve(space, composer)
    except SetpointError:
        # An installed package may define the unknown name.
        if not load_plugins():
            raise
    return _resolve(space, composer)


def refuse_too_many(size: int, limit: int) -> None:
    """Refuse a sweep that is larger than its limit.

    Raises:
        SetpointError: the sweep has more points.
    """
    if size > limit:
        # A huge number would not be readable.
        count = f"{size:,}" if size < 10**15 else f"about 10^{len(str(size)) - 1}"
        raise SetpointError(
            f"this sweep has {count} points, more than the limit of {limit:,}; give fewer values, "
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
            # A missing source, or a modifier that cannot be called.
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
    if not space.paths:
        raise SetpointError(
            f"this sweep varies nothing.\nValid: several values of a field, as in --FIELD 1,2; "
            f"several sources, as in A,B; several modifiers, as in --with A,B; --random N with a "
            f"distribution, as in --FIELD 'uniform(0, 1)'; a file with a table [{TABLE}]"
        )
    return Points(list(kept.values()), duplicates)


def _of_point(point: Point, error: SetpointError) -> Problem:
    axes = [item for item in point if item.path in ((SOURCE,), (WITH,))]
    named = next((item for item in axes if str(item.value) in str(error)), None)
    if named is None:
        return Problem("", str(error))
    origin = named.origin.describe(named.path)
    return Problem(named.key, str(error), value=str(named.value), origin=origin)


def _words(setting: Setting | None) -> list[str]:
    """The modifiers in a value of their axis: none, one, or several in brackets."""
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
                f"{text!r} would be imported, but files cannot import code; give it with --with, "
                f"or register the function as a modifier and import its module with --import"
            )


def mapping_of(point: Point) -> Mapping[str, object]:
    """The values of a point by key, as plain data."""
    return {item.key: item.plain() for item in point}
