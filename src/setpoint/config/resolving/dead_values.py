"""Settings without effect: refused where they were meant, dropped where they were overtaken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..draft.copying import draft_of, one_layer
from ..draft.walk import sections
from ..schema.declare import DEAD
from ..types.base import replace_in_item
from ..values.node import Chain, Node, chain_of, layers_of, set_chain, state_of, value_or_missing
from ..values.origin import DEFAULT, DERIVED, RECORD, REFERENCE, Origin
from ..values.scalar import Struct
from ..words.errors import Problem
from ..words.names import Path
from ..words.shown import MISSING, same
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
        set_chain(section, self.name, [])
        vars(section).pop(self.name, None)


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
                kind = type(section).__setpoint__.fields[name].type
                value = replace_in_item(kind, kept[-1][1], draft_of, False)
                object.__setattr__(section, name, value)
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
            names: tuple[str, ...] = getattr(method, DEAD)
            for each in names:
                for inside, holder, field in _given_in(section, each, ()):
                    chain = chain_of(holder, field)
                    # Without a default there is nothing to go back to.
                    required = type(holder).__setpoint__.fields[field].required
                    giver = None if required else _giver(chain)
                    if giver is not None and not _is_dead(before(giver), path, name):
                        drops.append(DroppedValue((*path, *inside), field, reason))
                        continue
                    relative = ".".join((*inside, field))
                    problem = Problem(relative, f"has no effect: {reason}", hint="Remove it.")
                    problems.append(whole_problem(path, section, problem))
    return drops, problems


def _given_in(
    section: Node, name: str, inside: tuple[str, ...]
) -> list[tuple[tuple[str, ...], Node, str]]:
    """The values that a layer has set at a name, or anywhere in the section that stands there."""
    first, _, rest = name.partition(".")
    info = type(section).__setpoint__.fields.get(first)
    if info is None:
        return []  # a field of another variant than the one that stands here
    chain, value = chain_of(section, first), value_or_missing(section, first)
    if isinstance(value, Node):
        usual: object = None if info.derived or info.required else info.initial()
        if not rest and type(usual) is not type(value) and _is_given(chain):
            return [(inside, section, first)]
        below = [rest] if rest else list(type(value).__setpoint__.fields)
        here = (*inside, first)
        return [found for each in below for found in _given_in(value, each, here)]
    if rest or not _is_given(chain):
        return []
    # A complete file names every value; what it leaves at the default is no mistake, nor is null
    # where what would be derived has no effect.
    usual = None if info.derived else MISSING if info.required else info.initial()
    if same(chain[-1][1], usual):
        return []
    return [(inside, section, first)]


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
