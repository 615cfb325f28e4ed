"""Reading a tree: sections, some of them in several places, and leaves with their origins."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any, cast

from ..schema.bounds import BUDGET, IDENTITY, RUNTIME, Role
from ..schema.class_info import ConfigMeta
from ..schema.field import FieldInfo
from ..schema.tree import section_classes
from ..types.base import PLAIN, FieldType
from ..values.containers import Free
from ..values.node import Chain, Node, chain_of, chains_of, is_frozen, value_or_missing
from ..values.origin import DEFAULT, PRESET, UNTOUCHED, Origin
from ..values.reference import Reference, from_environment, reference_to
from ..words.errors import Invalid, SetpointError
from ..words.names import Path, dotted, within
from ..words.plain_data import MAX_DEPTH, MISSING, TOO_DEEP, item_at, plain, same
from ..words.text import for_error
from .unknown_keys import location_hint

TAG = "tag"
"""The first word of the path that sets one."""
PLACES = 10_000
"""Sections of one tree, each counted in every place where it stands."""


def need_config(value: object, function: str, *, resolved: bool = False) -> None:
    """Refuse an argument that is no config, or no resolved one.

    Raises:
        SetpointError: naming the function.
    """
    if not isinstance(value, Node) or (resolved and not is_frozen(value)):
        text = f"a draft of {type(value).__name__}" if isinstance(value, Node) else for_error(value)
        kind = "a resolved configuration" if resolved else "a configuration"
        raise SetpointError(f"{function} takes {kind}, got {text}")


def need_class(value: object, function: str) -> None:
    """Refuse an argument that is no config class.

    Raises:
        SetpointError: naming the function.
    """
    if not isinstance(value, ConfigMeta):
        text = f"a {type(value).__name__}" if isinstance(value, Node) else for_error(value)
        raise SetpointError(f"{function} takes the class of a configuration, got {text}")


def holders(section: Node, make: bool = True) -> list[str]:
    """The fields whose value is no plain data, in order of declaration.

    Arguments:
        make: whether to make the defaults that an instance makes for itself.
    """
    values, names = vars(section), list[str]()
    for name, info in type(section).__setpoint__.fields.items():
        if make and info.factory is not None and name not in values:
            value_or_missing(section, name)
        value: Any = values.get(name)
        items: tuple[Any, ...] = value if value.__class__ is tuple else (value,)
        if not PLAIN.issuperset(map(type, items)):
            names.append(name)
    return names


def inner_sections(section: Node, make: bool = True) -> Iterator[tuple[Path, Node]]:
    """The sections directly inside one, with their paths from there."""
    fields, values = type(section).__setpoint__.fields, vars(section)
    for name in holders(section, make):
        value: Any = values[name]
        if isinstance(value, Node):
            yield (name,), value
        elif isinstance(value, tuple | list | dict) and fields[name].type.nested:
            for inside, part in fields[name].type.sections(value):
                yield (name, *inside), part


def sections(
    config: Node,
    path: Path = (),
    again: list[tuple[Path, Node]] | None = None,
    make: bool = True,
) -> Iterator[tuple[Path, Node]]:
    """Every section of a tree, the root first.

    Arguments:
        again: takes the further places of sections that stand in several.
        make: see `holders`.

    Returns:
        pairs of path and section; a section that stands in several places comes once, at the
        first of them.

    Raises:
        SetpointError: if a section contains itself.
    """
    result: list[tuple[Path, Node]] = []
    is_open: dict[int, bool] = {}

    def visit(section: Node, path: Path) -> None:
        if len(path) >= MAX_DEPTH:
            raise too_deep(section, path)
        result.append((path, section))
        is_open[id(section)] = True
        for inside, part in inner_sections(section, make):
            if id(part) not in is_open:
                visit(part, (*path, *inside))
            elif is_open[id(part)]:
                raise inside_itself(part, (*path, *inside))
            elif again is not None:
                again.append(((*path, *inside), part))
        is_open[id(section)] = False

    visit(config, path)
    return iter(result)


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


def reached(root: Node, tag: str) -> Iterator[tuple[Path, Node, FieldInfo]]:
    """The fields of a configuration, as it stands, that carry a tag."""
    for path, section in sections(root):
        for name, info in type(section).__setpoint__.fields.items():
            if tag in info.tags:
                yield (*path, name), section, info


# Sections that stand in several places.


def shared_places(config: Node) -> dict[Path, Path]:
    """The further places of sections that stand in several, each with the first place."""
    again: list[tuple[Path, Node]] = []
    first = {id(section): path for path, section in sections(config, (), again)}
    return {path: first[id(section)] for path, section in again}


def shared(config: Node) -> Iterator[str]:
    """Sections that stand in several places, in words.

    Returns:
        for each place but the first of its section, for instance `key is query, from exp.toml:3:1`.
    """
    places = shared_places(config)
    for leaf in leaves(config) if places else ():
        first = places.get(leaf.path)
        if first is not None:
            yield f"{leaf.key} is {dotted(first)}, from {leaf.describe_origin()}"


def check_size(config: Node) -> None:
    """Refuse a tree in which references to sections multiply beyond all use.

    Raises:
        SetpointError: if its sections, each counted in every place where it stands, are too many.
    """
    sizes: dict[int, int] = {}

    def size(section: Node) -> int:
        if id(section) not in sizes:
            sizes[id(section)] = 1 + sum(size(part) for _, part in inner_sections(section))
        return sizes[id(section)]

    if size(config) > PLACES:
        raise SetpointError(
            f"the configuration holds more than {PLACES:,} sections, each counted in every place "
            f"that refers to it"
        )


# The values at paths.


def value_at(node: Any, part: str | int) -> Any:
    """The value of a field, or an item of a list, a mapping or a free area, or MISSING."""
    if isinstance(node, Node):
        known = part in type(node).__setpoint__.fields
        return value_or_missing(node, str(part)) if known else MISSING
    if isinstance(node, Free):
        return cast(dict[str | int, Any], dict(node.items())).get(part, MISSING)
    return item_at(node, part)


def field_at(root: Node, path: Path) -> FieldInfo | None:
    """The field that a path leads to.

    Returns:
        the field; None for an item of a list or mapping, and in the user area.
    """
    node = reduce(value_at, path[:-1], root)
    return type(node).__setpoint__.fields.get(str(path[-1])) if isinstance(node, Node) else None


def missing_place(root: Node, path: Path) -> Invalid:
    """The error for a reference that leads nowhere."""
    name = dotted(path)
    node: Any = root
    for depth, part in enumerate(path[:-1], 1):
        if not isinstance(node, Node) or part not in type(node).__setpoint__.fields:
            break
        chain, node = chain_of(node, str(part)), value_or_missing(node, str(part))
        if node is None:
            origin = f" ({chain[-1][0].describe(path[:depth])})" if chain else ""
            return Invalid(f"refers to {name}, but {dotted(path[:depth])} is null{origin}")
    hint = location_hint(type(root), name)
    if not hint and len(path) == 1 and name.isupper():
        hint = from_environment(name, type(root).__setpoint__.environment_prefix)
    return Invalid(f"refers to {name}, which does not exist", hint=hint)


# Every value as a leaf, with its role and the layers that touched it.


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
        """The winning origin in words, for instance `exp.toml:3:1`."""
        return self.origin.describe(self.path)


def effective_role(outer: Role, inner: Role) -> Role:
    """The role of a field inside a section: identity only if both are."""
    for role in (RUNTIME, BUDGET):
        if role in (outer, inner):
            return role
    return IDENTITY


def leaves(config: Node, path: Path = (), role: Role = IDENTITY) -> Iterator[Leaf]:
    """Every value of a tree, in order of declaration.

    Lists of plain values are one leaf; lists of sections are walked into. A null section is a
    leaf. The tag of a variant is a leaf named `type`. Where a section stands in several places,
    its values are leaves of the first one; each of the others is one leaf, whose value is the
    reference to the first: that both are one object is part of the configuration.

    Returns:
        the leaves; those without a value yet are left out.
    """
    roles: dict[int, Role] = {}
    while True:
        walk = _Walk(roles)
        walk.fields(config, path, role, [])
        if not walk.promoted:
            return iter(walk.leaves)
        # A later place counts for more than the first one, so the values do as well.
        roles = {**roles, **walk.promoted}


class _Walk:
    """One walk over the values of a tree.

    Arguments:
        roles: the roles that sections have by other places than their first, by identity.

    Attributes:
        promoted: further such roles, which were met behind the first place.
    """

    def __init__(self, roles: dict[int, Role]) -> None:
        self.roles = roles
        self.promoted: dict[int, Role] = {}
        self.leaves: list[Leaf] = []
        self._first: dict[int, tuple[Path, Role, Chain]] = {}

    def fields(self, config: Node, path: Path, role: Role, chain: Chain) -> None:
        self._first[id(config)] = path, role, chain
        chains, cls = chains_of(config), type(config).__setpoint__
        for name, info in cls.fields.items():
            value: Any = value_or_missing(config, name)
            if value is MISSING:
                continue
            own = effective_role(role, info.role) if info.role not in (None, role) else role
            if value is None and name in cls.added:
                own = RUNTIME  # a package that is installed and not used changes no fingerprint
            self._value(info.type, value, (*path, name), own, chains.get(name, []))

    def _value(self, kind: FieldType, value: Any, path: Path, role: Role, chain: Chain) -> None:
        if isinstance(value, Node):
            self._section(value, path, role, chain)
        elif isinstance(value, Free):
            self.leaves += free_leaves(value, path, role)
        elif isinstance(value, Reference):
            self.leaves.append(Leaf(path, value.text, role, chain))
        elif value is not None and type(value) in PLAIN:
            self.leaves.append(Leaf(path, value, role, chain))
        elif not kind.nested:
            self.leaves.append(Leaf(path, kind.dump(value), role, chain))
        elif not value:
            # Null, or no items, where sections could stand cannot matter more than they would.
            roles = {cls.__setpoint__.role for cls in section_classes(kind)}
            role = effective_role(role, roles.pop()) if len(roles) == 1 else role
            self.leaves.append(Leaf(path, kind.dump(value), role, chain))
        else:
            items = kind.items(value)
            if isinstance(value, dict):  # whose order means nothing
                items = sorted(items, key=lambda item: item[0])
            for key, item, inner in items:
                state = item._state if isinstance(item, Node) else None  # pyright: ignore[reportPrivateUsage]
                own = chain if state is None or state.placed is None else state.placed
                self._value(inner, item, (*path, key), role, own)

    def _section(self, section: Node, path: Path, role: Role, chain: Chain) -> None:
        cls = type(section).__setpoint__
        if id(section) in self._first:
            first, known, declared = self._first[id(section)]
            if effective_role(role, known) is not role and role is not known:
                self.promoted[id(section)] = role
            # A reference to a later place was given at the first one.
            reference, role = reference_to(first), effective_role(role, cls.role)
            self.leaves.append(Leaf(path, reference, role, chain or declared))
            return
        promoted = self.roles.get(id(section), role)
        role = promoted if effective_role(role, promoted) is role else role
        if cls.tag is not None:
            self.leaves.append(
                Leaf((*path, "type"), cls.tag, effective_role(role, cls.role), chain)
            )
        elif not cls.fields:  # nothing else would say that it is there
            self.leaves.append(Leaf(path, {}, effective_role(role, cls.role), chain))
        self.fields(section, path, role, chain)


def free_leaves(area: Free, path: Path, role: Role) -> Iterator[Leaf]:
    """The values of a free area at any depth; one that is empty has none."""
    for key, value in area.items():
        if isinstance(value, Free):
            yield from free_leaves(value, (*path, key), role)
        else:
            yield Leaf((*path, key), Free(x=value).dump()["x"], role, area.chain(key))


def entries_of(config: Node, leaf: Leaf) -> list[Leaf]:
    """Each entry of a mapping as a leaf of its own.

    A layer counts for an entry that it brings or changes; the chain of the mapping holds the whole
    value of each layer.

    Returns:
        the entries, in the mapping's order; none for what is no mapping, or that no layer touched.
    """
    entries = _mapping(leaf.value)
    if not (entries and leaf.chain):
        return []
    info = field_at(config, leaf.path)
    before = _mapping(plain(info.initial() if info is not None else None))
    chains: dict[str, Chain] = {}
    for origin, value in leaf.chain:
        now = _mapping(plain(value))
        for key in now:
            if key not in before or not same(before[key], now[key]):
                chains.setdefault(key, []).append((origin, _mapping(value)[key]))
        before = now
    return [
        Leaf((*leaf.path, key), value, leaf.role, chains.get(key, []))
        for key, value in entries.items()
    ]


def _mapping(value: object) -> dict[str, object]:
    return cast(dict[str, object], value) if isinstance(value, dict) else {}


# Values that a later layer has overtaken.


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
    for (_, reason), (first, *others) in lines.items():
        values = [f"{first.key} = {for_error(first.value)}"]
        values += [f"{leaf.path[-1]} = {for_error(leaf.value)}" for leaf in others]
        origin = first.describe_origin()
        origin = origin.partition(" (")[0] if others else origin
        yield f"{', '.join(values)}, from {origin}: {reason}"


def dropped_leaves(config: Node, place: Path = ()) -> Iterator[tuple[Leaf, str]]:
    """The same as values in their places, each with the reason.

    Arguments:
        place: the path of the config itself.
    """
    for path, section in sections(config, place):
        state = section._state  # pyright: ignore[reportPrivateUsage]
        for name, value, origin, reason in state.dropped if state else ():
            inside = leaves(value, (*path, name)) if isinstance(value, Node) else ()
            given = [leaf for leaf in inside if leaf.origin.layer != DEFAULT]
            for leaf in given or [Leaf((*path, name), value, IDENTITY, [(origin, value)])]:
                yield leaf, reason
