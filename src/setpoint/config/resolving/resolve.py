"""From a draft to a resolved config: references, derived values, checks, and the freeze."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

from ..draft.copying import Copies, bind, draft_of, freeze
from ..draft.walk import check_size, need_config, sections, value_at
from ..values.node import Node, is_frozen, mark_invalid, state_of, value_or_missing
from ..values.origin import Origin
from ..words.errors import ConfigError, Problem
from ..words.names import Path
from .checks import Checker, silenced_codes, unknown_codes
from .computed import Computation
from .dead_values import DroppedValue, find_dead, undo

C = TypeVar("C", bound=Node)
Placed = list[tuple[Path, Node]]


def resolve(
    draft: C,
    *,
    problems: Sequence[Problem] = (),
) -> C:
    """Determine every value, check everything, and freeze a copy.

    Arguments:
        draft: the configuration with all layers merged; it is not changed.
        problems: what is wrong with values that could not be set; nothing is concluded from these.

    Raises:
        ConfigError: with every problem at once.
    """
    need_config(draft, "resolve")
    if is_frozen(draft):
        draft = draft_of(draft)
    drops: list[DroppedValue] = []
    earlier: dict[float, tuple[Placed, Computation]] = {}

    def before(giver: Origin) -> tuple[Placed, Computation]:
        if giver.order not in earlier:
            _, placed, _, computation = _determined(draft, problems, (), giver)
            earlier[giver.order] = placed, computation
        return earlier[giver.order]

    while True:
        root, placed, _, computation = _determined(draft, problems, drops)
        overtaken, dead = find_dead(computation, placed, before)
        if not overtaken:
            break
        # All follows anew without them; each round drops a value more, so that it comes to an end.
        drops.extend(overtaken)
    found = [*problems, *computation.problems, *dead]
    checker = Checker(placed)
    checker.required()
    checker.items()
    for _, section in placed:
        freeze(section)  # so that no check can change what it looks at
    checker.run()
    idle = {problem.path for problem in dead}
    found.extend(problem for problem in checker.problems if problem.path not in idle)
    silenced = silenced_codes(root)
    if silenced:
        found.extend(unknown_codes(root, silenced))
    if found:
        raise ConfigError(found)
    state_of(root).cautions = tuple(checker.cautions)
    return root


def _determined(
    draft: C,
    problems: Sequence[Problem],
    drops: Sequence[DroppedValue],
    last: Origin | None = None,
) -> tuple[C, Placed, Placed, Computation]:
    """A copy in which every value is computed; its sections, and their further places.

    `last` is the last layer that counts, if not all of them do.
    """
    copies = Copies(draft, working=True)
    root, placed, again, refers = copies.root, copies.placed, copies.again, copies.refers
    if last is not None:
        undo(root, last)
        placed, again = _walked(root)
    moved = (refers or last is not None or bool(drops)) and bind(root, placed)
    if moved:
        placed, again = _walked(root)
    if again:
        check_size(root)
    if drops:
        by_path = dict(placed)
        for drop in drops:
            if drop.path in by_path:
                drop.apply(by_path[drop.path])
        placed, again = _walked(root)
    if problems:
        placed = _mark_invalid(root, placed, problems)
    computation = Computation(root, placed, refers or last is not None or bool(drops))
    computation.run()
    if computation.shares:
        placed, again = _walked(root)
    return root, placed, again, computation


def _walked(root: Node) -> tuple[Placed, Placed]:
    """The sections of a tree that are not resolved yet, and the further places of any."""
    again: Placed = []
    placed = [one for one in sections(root, (), again) if not is_frozen(one[1])]
    return placed, again


def determined(draft: C, problems: Sequence[Problem]) -> C:
    """A copy with every value computed that can be; nothing is checked or frozen.

    Returns:
        the copy; what cannot be computed has no value in it.
    """
    return _determined(draft, problems, [])[0]


def _mark_invalid(root: Node, placed: Placed, problems: Sequence[Problem]) -> Placed:
    """Make unreadable what could not be set; the sections that still count are returned."""
    gone: set[Path] = set()
    for problem in problems:
        # A part of a value that is wrong, such as an item of a list, makes the whole field so.
        section, name, path = _field_at(root, problem.path)
        if section is None:
            continue
        *inside, last = problem.path.split(".")[len(path) :] or [""]
        whole = not isinstance(value_or_missing(section, name), Node)
        # A section stays, with all that is right in it, unless it is of an unknown variant.
        if whole or (last == "type" and not inside):
            mark_invalid(section, name)
            if last == "type":
                gone.add((*path, *inside))
    return [
        (path, section)
        for path, section in placed
        if not any(tuple(map(str, path[: len(one)])) == one for one in gone)
    ]


def _field_at(root: Node, path: str) -> tuple[Node | None, str, Path]:
    """The innermost field that a path leads through, with the section that has it and its path."""
    node: Any = root
    found: tuple[Node | None, str, Path] = None, "", ()
    parts: list[str | int] = [*path.split(".")]
    for depth, part in enumerate(parts):
        if isinstance(node, Node):
            part = parts[depth] = str(part).replace("-", "_")
            if part in type(node).__setpoint__.fields:
                found = node, part, tuple(map(str, parts[: depth + 1]))
        elif isinstance(node, tuple | list) and str(part).isdecimal():
            part = int(part)
        node = value_at(cast(object, node), part)
    return found
