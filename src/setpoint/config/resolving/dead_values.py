"""Settings without effect: refused where they were meant, dropped where they were overtaken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..draft.copying import draft_of, one_layer
from ..draft.walk import sections
from ..schema.declare import DEAD, HOLDS
from ..types.base import replace_in_item
from ..values.node import Chain, Node, chain_of, layers_of, set_chain, state_of, value_or_missing
from ..values.origin import DEFAULT, DERIVED, RECORD, REFERENCE, Origin
from ..values.scalar import Struct
from ..words.errors import Problem
from ..words.names import Path, dotted
from ..words.plain_data import MISSING, same
from .checks import failure, whole_problem
from .computed import Computation

Placed = list[tuple[Path, Node]]


class DroppedValue(Struct):
    """A value that an earlier layer gave, and that has no effect since a later one."""

    path: Path
    name: str
    reason: str

    def apply(self, section: Node) -> None:
        """Take the value out of a section, so that all follows as if it had never been given."""
        chain = chain_of(section, self.name)
        if not chain:
            return
        origin, value = chain[-1]
        state_of(section).dropped += ((self.name, value, origin, f"no effect: {self.reason}"),)
        usual = [(given, kept) for given, kept in chain if given.layer == DEFAULT]
        set_chain(section, self.name, usual)
        if usual:  # of a section that a factory makes
            _put_back(section, self.name, usual[-1][1])
        else:
            vars(section).pop(self.name, None)


def _put_back(section: Node, name: str, value: object) -> None:
    kind = type(section).__setpoint__.fields[name].type
    object.__setattr__(section, name, replace_in_item(kind, value, draft_of, False))


def undo(root: Node, giver: Origin) -> None:
    """Take out all that later layers than one have set."""
    for _, section in sections(root):
        layers = layers_of(section)
        undone = [given for origin, given in layers if _later(origin, giver)]
        if not undone:
            continue
        kept_layers = [layer for layer in layers if not _later(layer[0], giver)]
        state_of(section).layers = kept_layers
        for name in {name for given in undone for name in given}:
            kept = chain_of(section, name)
            if kept:
                _put_back(section, name, kept[-1][1])
            else:
                del vars(section)[name]


def find_dead(
    computation: Computation, placed: Placed, before: Callable[[Origin], tuple[Placed, Computation]]
) -> tuple[list[DroppedValue], list[Problem]]:
    """Ask all methods marked `@dead`, once every value is known.

    Arguments:
        before: the sections and the computation without what later layers than one have set.

    Returns:
        the values to be dropped, which were set before what makes them dead; and a problem for
        each that was set along with it, or after.
    """
    drops: list[DroppedValue] = []
    problems: list[Problem] = []
    for path, section in placed:
        for name in type(section).__setpoint__.deads:
            method: Any = getattr(section, name)
            names: tuple[str, ...] = getattr(method, DEAD)
            holds: tuple[object, ...] = (None, *getattr(method, HOLDS))
            given = [
                (inside, holder, field)
                for each in names
                for inside, holder, field in _given_in(computation, section, each, ())
                if not any(same(chain_of(holder, field)[-1][1], value) for value in holds)
            ]
            if not given:
                continue
            try:
                reason = computation.observe(section, name)
            except Exception as error:
                problems.append(whole_problem(path, section, failure(method, error)))
                continue
            if not reason:
                continue
            if not isinstance(reason, str):
                error = TypeError("a dead method returns a reason or None")
                problems.append(whole_problem(path, section, failure(method, error)))
                continue
            for inside, holder, field in given:
                chain = chain_of(holder, field)
                # Without a default there is nothing to go back to.
                required = type(holder).__setpoint__.fields[field].required
                giver = None if required else _giver(chain)
                if giver is not None and not _is_dead(before(giver), path, name):
                    drops.append(DroppedValue((*path, *inside), field, reason))
                    continue
                relative = dotted((*inside, field))
                problem = Problem(relative, f"has no effect: {reason}", hint="Remove it.")
                problems.append(whole_problem(path, section, problem))
    return drops, problems


def _given_in(
    computation: Computation, section: Node, name: str, inside: Path
) -> list[tuple[Path, Node, str]]:
    """The values that a layer has set at a name, or anywhere in the sections that stand there."""
    first, _, rest = name.partition(".")
    info = type(section).__setpoint__.fields.get(first)
    if info is None:
        return []  # a field of another variant than the one that stands here
    chain, value = chain_of(section, first), value_or_missing(section, first)
    if isinstance(value, Node):
        usual: object = None if info.derived or info.required else info.initial()
        if not rest and type(usual) is not type(value) and _is_given(chain):
            return [(inside, section, first)]
        return _below(computation, value, [rest] if rest else None, (*inside, first))
    if rest:
        return []
    if not _is_given(chain):
        items = info.type.sections(value) if info.type.nested and value is not MISSING else ()
        found = (_below(computation, item, None, (*inside, first, *at)) for at, item in items)
        return [one for each in found for one in each]
    # A complete file names every value; what it leaves at the default, or as it would be derived,
    # is no mistake.
    if info.derived:
        usual = computation.usual(section, first)
    else:
        usual = MISSING if info.required else info.initial()
    return [] if same(chain[-1][1], usual) else [(inside, section, first)]


def _below(
    computation: Computation, section: Node, names: Sequence[str] | None, here: Path
) -> list[tuple[Path, Node, str]]:
    """The values that a layer has set in some fields of a section, or in all of them."""
    below = names or list(type(section).__setpoint__.fields)
    return [found for each in below for found in _given_in(computation, section, each, here)]


def _is_given(chain: Chain) -> bool:
    return bool(chain) and chain[-1][0].layer not in (DEFAULT, DERIVED, RECORD)


def _giver(chain: Chain) -> Origin | None:
    """The layer that gave a value; None for defaults and what is derived."""
    for origin, _ in reversed(chain):
        if origin.layer != REFERENCE:
            return None if origin.layer in (DEFAULT, DERIVED) else origin
    return None


def _is_dead(before: tuple[Placed, Computation], path: Path, name: str) -> bool:
    """Whether a method already had a reason when a value was given, and no later layer is it."""
    placed, computation = before
    then = next((other for place, other in placed if place == path), None)
    if then is None or not hasattr(type(then), name):
        return False
    try:
        return bool(computation.observe(then, name))
    except Exception:  # what it would have said is not known, so that nothing excuses the value
        return True


def _later(origin: Origin, giver: Origin) -> bool:
    return origin.order > giver.order and not one_layer(origin, giver)
