"""From a draft to a resolved config: computed and dead values, checks, and the freeze.

A dead value is one that can have no effect. It is refused if it was set together with the value
that makes it dead, or later, but dropped if a later layer made it dead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from ..draft.copying import MANY_ORIGINS, bind, draft_of, freeze, one_layer
from ..draft.walk import need_config, sections, steps
from ..schema.field import MARK, DeadMark
from ..types.base import replace_in_item
from ..values.node import (
    Layer,
    Node,
    chain_of,
    is_frozen,
    mark_invalid,
    set_chain,
    state_of,
    value_or_missing,
)
from ..values.origin import DEFAULT, DERIVED, RECORD, REFERENCE, Origin, Recorded
from ..words.errors import ConfigError, Problem
from ..words.names import Path, dotted
from ..words.plain_data import MISSING, same
from .checks import (
    Placed,
    method_failed,
    run_checks,
    silenced_codes,
    unknown_codes,
    whole_problem,
    wrong_values,
)
from .computed import Computation

C = TypeVar("C", bound=Node)
Given = tuple[Path, Node, str]  # a path inside a section, and the field that it leads to


class SupersededValue(NamedTuple):
    """A value of an earlier layer that a later one made ineffective."""

    path: Path
    name: str
    reason: str


def resolve(draft: C, *, problems: Sequence[Problem] = ()) -> C:
    """Determine every value, check everything, and freeze a copy.

    Arguments:
        draft: the configuration with all layers merged; it is not changed.
        problems: errors about values that could not be set; nothing is concluded from them.

    Raises:
        ConfigError: lists every problem at once.
    """
    need_config(draft, "resolve")
    superseded: list[SupersededValue] = []
    earlier: dict[object, tuple[Placed, Computation]] = {}

    def without_later_layers(layer: Origin) -> tuple[Placed, Computation]:
        key = RECORD if isinstance(layer, Recorded) else MANY_ORIGINS.get(layer.layer, layer.order)
        if key not in earlier:  # once for all flags, variables, and values of a record
            earlier[key] = _determined(draft, problems, (), layer)[1:]
        return earlier[key]

    while True:
        root, placed, computation = _determined(draft, problems, superseded)
        later, dead = find_dead(computation, placed, without_later_layers)
        if not later:
            break
        # Everything is determined again without them; each round drops a value, so this terminates.
        superseded.extend(later)
    wrong = list(wrong_values(placed))
    for _, section in placed:
        freeze(section)  # checks cannot change the sections they read
    refused, cautions = run_checks(placed)
    dead_paths = {problem.path for problem in dead}
    checked = [problem for problem in (*wrong, *refused) if problem.path not in dead_paths]
    silenced = silenced_codes(root)
    unknown = unknown_codes(root, silenced) if silenced else ()
    if reported := [*problems, *computation.problems, *dead, *checked, *unknown]:
        raise ConfigError(reported)
    state_of(root).cautions = tuple(cautions)
    return root


def determined(draft: C, problems: Sequence[Problem]) -> C:
    """Return a copy with computed values, without checking or freezing anything."""
    return _determined(draft, problems, ())[0]


def _determined(
    draft: C,
    problems: Sequence[Problem],
    superseded: Sequence[SupersededValue],
    last: Origin | None = None,
) -> tuple[C, Placed, Computation]:
    """Compute all values of a copy; return the copy, its sections, and the computation.

    `last` is the last layer to apply, if not all of them.
    """
    root = draft_of(draft)
    if last is not None:
        _remove_later_layers(root, last)
    placed = _unresolved(root)
    if bind(root, placed):
        placed = _unresolved(root)
    if superseded:
        by_path = dict(placed)
        for value in superseded:
            if value.path in by_path:
                _remove(by_path[value.path], value)
        placed = _unresolved(root)
    if problems:
        placed = _mark_invalid(root, placed, problems)
    computation = Computation(root, placed)
    computation.run()
    return root, _unresolved(root) if computation.shares else placed, computation


def _unresolved(root: Node) -> Placed:
    """The sections of a tree that are not resolved yet."""
    return [place for place in sections(root) if not is_frozen(place[1])]


def find_dead(
    computation: Computation,
    placed: Placed,
    without_later_layers: Callable[[Origin], tuple[Placed, Computation]],
) -> tuple[list[SupersededValue], list[Problem]]:
    """Call all methods marked `@dead`, once every value is known.

    Arguments:
        without_later_layers: determines the sections and computes, without the values of layers
            after a given one.

    Returns:
        the values to be dropped, which were set before the values that make them dead; and a
        problem for each value set together with those, or later.
    """
    superseded: list[SupersededValue] = []
    problems: list[Problem] = []
    for path, section in placed:
        for name in type(section).__setpoint__.deads:
            method: Any = getattr(section, name)
            mark: DeadMark = getattr(method, MARK)
            given = [
                (inside, holder, field)
                for relative in mark.names
                for inside, holder, field in _given_in(computation, section, relative, ())
                if not any(same(chain_of(holder, field)[-1][1], x) for x in (None, *mark.holds))
            ]
            if not given:
                continue
            try:
                reason = computation.observe(section, name)
                if reason and not isinstance(reason, str):
                    raise TypeError("a dead method returns a reason or None")
            except Exception as error:
                problems.append(whole_problem(path, section, method_failed(method, error)))
                continue
            for inside, holder, field in given if reason else ():
                layer = _source_layer(holder, field)
                if layer is not None and not _is_dead(*without_later_layers(layer), path, name):
                    superseded.append(SupersededValue((*path, *inside), field, str(reason)))
                    continue
                relative = dotted((*inside, field))
                problem = Problem(relative, f"has no effect: {reason}", hint="Remove it.")
                problems.append(whole_problem(path, section, problem))
    return superseded, problems


def _given_in(computation: Computation, section: Node, name: str, inside: Path) -> Iterator[Given]:
    """The values that a layer set in a field, or in the sections inside it."""
    first, _, rest = name.partition(".")
    info = type(section).__setpoint__.fields.get(first)
    if info is None:
        return  # a field of another variant than the current one
    chain = chain_of(section, first)
    value: Any = value_or_missing(section, first)
    given = bool(chain) and chain[-1][0].layer not in (DEFAULT, DERIVED, RECORD)
    place = (*inside, first)
    if isinstance(value, Node):
        default: object = None if info.derived or info.required else info.initial()
        if given and not rest and type(default) is not type(value):
            yield inside, section, first
            return
        for field in [rest] if rest else type(value).__setpoint__.fields:
            yield from _given_in(computation, value, field, place)
    elif rest:
        return
    elif given:
        # A complete file has every value; values that are equal to the default or the derived value
        # are not a mistake.
        if not same(chain[-1][1], computation.default_or_derived(section, first)):
            yield inside, section, first
    elif info.type.nested and value is not MISSING:
        parts: Iterator[tuple[Path, Node]] = info.type.sections(value)
        for item_path, item in parts:
            for field in type(item).__setpoint__.fields:
                yield from _given_in(computation, item, field, (*place, *item_path))


def _source_layer(section: Node, name: str) -> Origin | None:
    """The layer that set a value; None if the field has no default without it."""
    if type(section).__setpoint__.fields[name].required:
        return None
    for origin, _ in reversed(chain_of(section, name)):
        if origin.layer != REFERENCE:
            return None if origin.layer in (DEFAULT, DERIVED) else origin
    return None


def _is_dead(placed: Placed, computation: Computation, path: Path, name: str) -> bool:
    """True if a method already returned a reason when the value was set."""
    section = next((section for place, section in placed if place == path), None)
    if section is None or not hasattr(type(section), name):
        return False
    try:
        return bool(computation.observe(section, name))
    except Exception:  # the reason is unknown, so nothing excuses the value
        return True


def _remove_later_layers(root: Node, last: Origin) -> None:
    """Remove the values set by layers after `last`."""
    for _, section in sections(root):
        kept: list[Layer] = []
        removed: set[str] = set()
        for origin, given in state_of(section).layers:
            if origin.order > last.order and not one_layer(origin, last):
                removed.update(given)
            else:
                kept.append((origin, given))
        if removed:
            state_of(section).layers = kept
        for name in removed:
            _restore(section, name)


def _remove(section: Node, value: SupersededValue) -> None:
    """Remove a value from a section, as if it had never been set."""
    chain = chain_of(section, value.name)
    if not chain:
        return
    origin, given = chain[-1]
    state_of(section).dropped += ((value.name, given, origin, f"no effect: {value.reason}"),)
    # Values of a section made by a factory stay.
    set_chain(section, value.name, [layer for layer in chain if layer[0].layer == DEFAULT])
    _restore(section, value.name)


def _restore(section: Node, name: str) -> None:
    """Restore the last value of a field from the remaining layers."""
    chain, kind = chain_of(section, name), type(section).__setpoint__.fields[name].type
    if chain:
        value = replace_in_item(kind, chain[-1][1], draft_of)
        object.__setattr__(section, name, value)
    else:
        vars(section).pop(name, None)


def _mark_invalid(root: Node, placed: Placed, problems: Sequence[Problem]) -> Placed:
    """Mark invalid fields, and return the sections that remain valid."""
    paths: set[Path] = set()
    for problem in problems:
        # A wrong part of a value, such as an item of a list, makes the whole field wrong.
        section, name, path = _field_at(root, problem.path)
        if section is None:
            continue
        *inside, last = problem.path.split(".")[len(path) :] or [""]
        is_value = not isinstance(value_or_missing(section, name), Node)
        # A section stays, with its valid values, unless its variant is unknown.
        if is_value or (last == "type" and not inside):
            mark_invalid(section, name)
            if last == "type":
                paths.add((*path, *inside))
    return [
        (path, section)
        for path, section in placed
        if not any(tuple(map(str, path[: len(prefix)])) == prefix for prefix in paths)
    ]


def _field_at(root: Node, path: str) -> tuple[Node | None, str, Path]:
    """The innermost field on a path, with its section and its own path."""
    field: tuple[Node | None, str, Path] = None, "", ()
    for holder, done, _ in steps(root, path):
        if isinstance(holder, Node) and done[-1] in type(holder).__setpoint__.fields:
            field = holder, str(done[-1]), tuple(map(str, done))
    return field
