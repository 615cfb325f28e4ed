"""Walks over a config tree: its sections, its leaves with their origins, its tagged fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

from ..schema.bounds import BUDGET, IDENTITY, RUNTIME, Role
from ..schema.field import FieldInfo
from ..schema.tree import section_classes
from ..types.base import PLAIN, FieldType
from ..values.containers import Free
from ..values.node import Chain, Node, chains_of, state_of, value_or_missing
from ..values.origin import DEFAULT, PRESET, UNTOUCHED, Origin
from ..values.reference import Reference, reference_to
from ..words.errors import SetpointError
from ..words.names import Path, dotted, within
from ..words.plain_data import MAX_DEPTH, MISSING, TOO_DEEP
from ..words.text import for_error

TAG = "tag"  # the first word of the path that sets one


class Leaf:
    """One value of a tree.

    Arguments:
        role: its role, with the roles of the fields above it taken into account.
        chain: the layers that touched it; empty for a default.
    """

    __slots__ = ("chain", "path", "role", "value")

    def __init__(self, path: Path, value: Any, role: Role, chain: Chain) -> None:
        self.path = path
        self.value = value
        self.role = role
        self.chain = chain

    @property
    def key(self) -> str:
        """The dotted path."""
        return dotted(self.path)

    @property
    def origin(self) -> Origin:
        """The origin of the layer that won."""
        return self.chain[-1][0] if self.chain else UNTOUCHED

    def describe_origin(self) -> str:
        """The winning origin in words.

        Returns:
            for instance `exp.toml:3:1`.
        """
        return self.origin.describe(self.path)


def narrower(outer: Role, inner: Role) -> Role:
    """The role of a field inside a section: identity only if both are."""
    for role in (RUNTIME, BUDGET):
        if role in (outer, inner):
            return role
    return IDENTITY


def sections(
    config: Node,
    path: Path = (),
    again: list[tuple[Path, Node]] | None = None,
) -> Iterator[tuple[Path, Node]]:
    """Every section of a tree, the root first.

    Returns:
        pairs of path and section; a section that stands in several places comes once, at the
        first of them.

    Raises:
        SetpointError: if a section contains itself.
    """
    found: list[tuple[Path, Node]] = []
    _walk(config, path, {}, found, [] if again is None else again)
    return iter(found)


def _walk(
    config: Node,
    path: Path,
    open_: dict[int, bool],
    all_: list[tuple[Path, Node]],
    again: list[tuple[Path, Node]],
) -> None:
    if len(path) >= MAX_DEPTH:
        raise too_deep(config, path)
    all_.append((path, config))
    state = config._state  # pyright: ignore[reportPrivateUsage]
    frozen = state is not None and state.frozen
    open_[id(config)] = True
    held = vars(config)
    for name in _holding(config, frozen):
        value: Any = held[name]
        if isinstance(value, Node):
            found: Iterable[tuple[Path, Node]] = (((), value),)
        elif isinstance(value, tuple | list | dict):
            kind = type(config).__setpoint__.fields[name].type
            if not kind.nested:
                continue
            found = kind.sections(value)
        else:
            continue
        for inside, section in found:
            here = (*path, name, *inside)
            if id(section) not in open_:
                _walk(section, here, open_, all_, again)
            elif open_[id(section)]:
                raise inside_itself(section, here)
            else:
                again.append((here, section))
    open_[id(config)] = False


def too_deep(config: Node, path: Path) -> SetpointError:
    """The error for a section that lies too deep, as one does that holds its own kind."""
    return SetpointError(
        f"{dotted(path[:3])}... is {TOO_DEEP}: {type(config).__name__} nests sections without "
        f"end, or too deeply"
    )


def inside_itself(section: Node, path: Path) -> SetpointError:
    """The error for a section that stands inside of itself."""
    return SetpointError(
        f"{type(section).__name__} contains itself: it stands in its own {dotted(path)}"
    )


def _holding(config: Node, frozen: bool) -> list[str]:
    """The fields that may hold sections, in order of declaration."""
    held, plan = vars(config), type(config).__setpoint__.plan
    for name in () if frozen else plan.factories:
        if name not in held:
            value_or_missing(config, name)
    found = [name for name, value in held.items() if value.__class__ not in PLAIN]
    if len(found) > 1:
        found.sort(key=plan.order.__getitem__)
    return found


def has_shared(config: Node) -> bool:
    """Whether some section of a resolved tree stands in several places."""
    state = state_of(config)
    if state.has_shared is None:
        again: list[tuple[Path, Node]] = []
        sections(config, (), again)
        state.has_shared = bool(again)
    return state.has_shared


def leaves(config: Node, path: Path = (), role: Role = IDENTITY) -> Iterator[Leaf]:
    """Every value of a tree, in order of declaration.

    Lists of plain values are one leaf; lists of sections are walked into. A null section is a
    leaf. The tag of a variant is a leaf named `type`. Where a section stands in several places,
    its values are leaves of the first one; each of the others is one leaf, whose value is the
    reference to the first: that both are one object is part of the configuration.

    Returns:
        the leaves; those without a value yet are left out.
    """
    walk = _Walk({})
    found = list(walk.leaves(config, path, role))
    while walk.wider:
        # A later place counts for more than the first one, so the values do as well.
        walk = _Walk({**walk.roles, **walk.wider})
        found = list(walk.leaves(config, path, role))
    return iter(found)


class _Walk:
    """One walk over the values of a tree.

    Arguments:
        roles: the roles that sections have by other places than their first, by identity.
    """

    def __init__(self, roles: dict[int, Role]) -> None:
        self.roles = roles
        self.wider: dict[int, Role] = {}
        self.first: dict[int, tuple[Path, Role, Chain]] = {}

    def leaves(
        self,
        config: Node,
        path: Path,
        role: Role,
        chain: Chain | None = None,
    ) -> Iterator[Leaf]:
        self.first[id(config)] = path, role, chain or []
        chains = chains_of(config)
        added = type(config).__setpoint__.added
        for name, info in type(config).__setpoint__.fields.items():
            value: Any = value_or_missing(config, name)
            if value is MISSING:
                continue
            here: Path = (*path, name)
            own = narrower(role, info.role) if info.role not in (None, role) else role
            if value is None and name in added:
                own = RUNTIME  # a package that is installed and not used changes no fingerprint
            layers = chains.get(name) or []
            if value is not None and type(value) in PLAIN:
                yield Leaf(here, value, own, layers)
            elif isinstance(value, Node):
                yield from self.section(value, here, own, layers)
            else:
                yield from self.value(info.type, value, here, own, layers)

    def value(
        self, kind: FieldType, value: Any, path: Path, role: Role, chain: Chain
    ) -> Iterator[Leaf]:
        if value is not None and type(cast(object, value)) in PLAIN:
            yield Leaf(path, value, role, chain)
        elif isinstance(value, Node):
            yield from self.section(value, path, role, chain)
        elif isinstance(value, Free):
            yield from free_leaves(value, path, role)
        elif isinstance(value, Reference):
            yield Leaf(path, value.text, role, chain)
        elif kind.nested:
            if value:
                items = kind.items(value)
                if isinstance(value, dict):  # whose order means nothing
                    items = sorted(items, key=lambda item: item[0])
                for key, item, inner in items:
                    state = item._state if isinstance(item, Node) else None  # pyright: ignore[reportPrivateUsage]
                    own = chain if state is None or state.placed is None else state.placed
                    yield from self.value(inner, item, (*path, key), role, own)
            else:
                yield Leaf(path, kind.dump(value), absence_role(kind, role), chain)
        else:
            yield Leaf(path, kind.dump(value), role, chain)

    def section(self, section: Node, path: Path, role: Role, chain: Chain) -> Iterator[Leaf]:
        cls = type(section).__setpoint__
        before = self.first.get(id(section))
        if before is not None:
            first, known, declared = before
            if narrower(role, known) is not role and role is not known:
                self.wider[id(section)] = role
            # A reference to a later place was given at the first one.
            yield Leaf(path, reference_to(first), narrower(role, cls.role), chain or declared)
            return
        wider = self.roles.get(id(section), role)
        role = wider if narrower(role, wider) is role else role
        if cls.tag is not None:
            yield Leaf((*path, "type"), cls.tag, narrower(role, cls.role), chain)
        elif cls.tag is None and not cls.fields:
            # Nothing else would say that it is there.
            yield Leaf(path, {}, narrower(role, cls.role), chain)
        yield from self.leaves(section, path, role, chain)


def absence_role(kind: FieldType, role: Role) -> Role:
    """The role of null, or of an empty list, where a section could stand."""
    roles = {cls.__setpoint__.role for cls in section_classes(kind)}
    # Whether there is a tracker cannot matter more than which one.
    return narrower(role, roles.pop()) if len(roles) == 1 else role


def free_leaves(area: Free, path: Path, role: Role) -> Iterator[Leaf]:
    """The values of a free area at any depth; one that is empty has none."""
    for key, value in area.items():
        if isinstance(value, Free):
            yield from free_leaves(value, (*path, key), role)
        else:
            yield Leaf((*path, key), Free(x=value).dump()["x"], role, area.chain(key))


def dropped_values(config: Node, place: str = "") -> Iterator[str]:
    """The values that a later layer has overtaken, since it leaves no place or effect to them.

    Those of a preset in one section are a line together: they were chosen for its own variant.

    Arguments:
        place: the field or section that they are asked for; all if empty.
    """
    lines: dict[tuple[object, str], list[Leaf]] = {}
    for leaf, reason in dropped_leaves(config):
        if place and not within(leaf.key, place):
            continue
        preset = leaf.describe_origin().partition(" (")[0]
        together = (leaf.path[:-1], preset) if leaf.origin.layer == PRESET else leaf.path
        lines.setdefault((together, reason), []).append(leaf)
    for (_, reason), of in lines.items():
        first, *others = of
        values = [f"{first.key} = {for_error(first.value)}"]
        values += [f"{leaf.path[-1]} = {for_error(leaf.value)}" for leaf in others]
        where = first.describe_origin()
        yield f"{', '.join(values)}, from {where.partition(' (')[0] if others else where}: {reason}"


def dropped_leaves(config: Node, place: Path = ()) -> Iterator[tuple[Leaf, str]]:
    """The same as values in their places, each with the reason.

    Arguments:
        place: the path of the config itself.
    """
    for path, section in sections(config, place):
        state = section._state  # pyright: ignore[reportPrivateUsage]
        for name, value, origin, reason in state.dropped if state else ():
            here = (*path, name)
            inside = list(leaves(value, here)) if isinstance(value, Node) else []
            given = [leaf for leaf in inside if leaf.origin.layer != DEFAULT]
            for leaf in given or [Leaf(here, value, IDENTITY, [(origin, value)])]:
                yield leaf, reason


def reached(root: Node, tag: str) -> Iterator[tuple[Path, Node, FieldInfo]]:
    """The fields of a configuration, as it stands, that carry a tag."""
    for path, section in list(sections(root)):
        for name, info in type(section).__setpoint__.fields.items():
            if tag in info.tags:
                yield (*path, name), section, info
