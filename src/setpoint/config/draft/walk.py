"""Reading a tree: its sections, its values as leaves with their origins, and as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any, NamedTuple, cast

from ..schema.class_info import ConfigMeta, section_classes
from ..schema.field import BUDGET, IDENTITY, RUNTIME, FieldInfo, Role
from ..types.base import PLAIN, FieldType
from ..types.compound import REMOVE
from ..values.containers import Free
from ..values.node import Chain, Node, chain_of, chains_of, is_frozen, state_of, value_or_missing
from ..values.origin import (
    DEFAULT,
    DERIVED,
    MODIFIER,
    PRESET,
    REFERENCE,
    UNTOUCHED,
    Origin,
    Recorded,
)
from ..values.reference import Reference, from_environment, reference_to
from ..words.errors import Invalid, SetpointError
from ..words.names import Path, dotted, within
from ..words.plain_data import MAX_DEPTH, MISSING, TOO_DEEP, item_at, plain, same
from ..words.text import for_error
from .hints import location_hint

TAG = "tag"
"""First word of a path that sets a tag."""


def need_config(value: object, function: str, *, resolved: bool = False) -> None:
    """Refuse an argument that is not a config, or is not resolved.

    Raises:
        SetpointError: names the function.
    """
    if not isinstance(value, Node) or (resolved and not is_frozen(value)):
        text = f"a draft of {type(value).__name__}" if isinstance(value, Node) else for_error(value)
        kind = "a resolved configuration" if resolved else "a configuration"
        if isinstance(value, str):
            draft = f"compose(ROOT, {text}).draft"
            made = f"resolve({draft})" if resolved else draft
            text += f"; {made} is one, where ROOT is its class"
        raise SetpointError(f"{function} takes {kind}, got {text}")


def need_class(value: object, function: str) -> None:
    """Refuse an argument that is not a config class.

    Raises:
        SetpointError: names the function.
    """
    if not isinstance(value, ConfigMeta):
        text = f"a {type(value).__name__}" if isinstance(value, Node) else for_error(value)
        raise SetpointError(f"{function} takes the class of a configuration, got {text}")


def holders(section: Node, make: bool = True) -> list[str]:
    """Fields with sections in their values; `make` first creates mutable defaults."""
    values: dict[str, Any] = vars(section)
    fields = type(section).__setpoint__.fields
    if make and not fields.keys() <= values.keys():
        for name, info in fields.items():
            if info.factory is not None and name not in values:
                value_or_missing(section, name)
    # Every walk calls this, so most values pass one test only.
    found = {
        name
        for name, value in values.items()
        if value.__class__ not in PLAIN
        and not (value.__class__ is tuple and PLAIN.issuperset(map(type, value)))
    }
    return [name for name in fields if name in found] if found else []


def inner_sections(section: Node, make: bool = True) -> Iterator[tuple[Path, Node]]:
    """The sections directly inside a section, with relative paths."""
    fields, values = type(section).__setpoint__.fields, vars(section)
    for name in holders(section, make):
        value: Any = values[name]
        if isinstance(value, Node):
            yield (name,), value
        elif isinstance(value, tuple | list | dict) and fields[name].type.nested:
            for inside, part in fields[name].type.sections(value):
                yield (name, *inside), part


def sections(
    config: Node, path: Path = (), repeats: list[tuple[Path, Node]] | None = None, make: bool = True
) -> Iterator[tuple[Path, Node]]:
    """Every section of a tree, the root first; shared sections are yielded once.

    The further paths of shared sections are added to `repeats`; for `make` see `holders`.

    Raises:
        SetpointError: a section contains itself.
    """
    result: list[tuple[Path, Node]] = []
    is_open: dict[int, bool] = {}

    def visit(section: Node, path: Path) -> None:
        if len(path) >= MAX_DEPTH:
            raise SetpointError(
                f"{dotted(path[:3])}... is {TOO_DEEP}: {type(section).__name__} nests sections "
                f"without end, or too deeply"
            )
        result.append((path, section))
        is_open[id(section)] = True
        for inside, part in inner_sections(section, make):
            if id(part) not in is_open:
                visit(part, (*path, *inside))
            elif is_open[id(part)]:
                place = dotted((*path, *inside))
                raise SetpointError(
                    f"{type(part).__name__} contains itself: it is in its own {place}"
                )
            elif repeats is not None:
                repeats.append(((*path, *inside), part))
        is_open[id(section)] = False

    visit(config, path)
    return iter(result)


def reached(root: Node, tag: str) -> Iterator[tuple[Path, Node, FieldInfo]]:
    """The fields of a configuration, in its current state, that carry a tag."""
    for path, section in sections(root):
        for name, info in type(section).__setpoint__.fields.items():
            if tag in info.tags:
                yield (*path, name), section, info


# Shared sections.


def shared_places(config: Node) -> dict[Path, Path]:
    """The further paths of shared sections, each with the first path."""
    repeats: list[tuple[Path, Node]] = []
    first = {id(section): path for path, section in sections(config, (), repeats)}
    return {path: first[id(section)] for path, section in repeats}


def shared(config: Node) -> Iterator[str]:
    """Shared sections as text: `key is query, from exp.toml:3:1`."""
    places = shared_places(config)
    for leaf in leaves(config) if places else ():
        first = places.get(leaf.path)
        if first is not None:
            yield f"{leaf.key} is {dotted(first)}, from {leaf.describe_origin()}"


# Values at paths.


def value_at(node: Any, part: str | int) -> Any:
    """The value of a field or an item; MISSING if there is none."""
    if isinstance(node, Node):
        known = part in type(node).__setpoint__.fields
        return value_or_missing(node, str(part)) if known else MISSING
    if isinstance(node, Free):
        return cast(dict[str | int, Any], dict(node.items())).get(part, MISSING)
    return item_at(node, part)


def steps(node: Any, path: str) -> Iterator[tuple[Any, Path, Any]]:
    """Follow a dotted path, yielding for each part the holder, path so far, and value or MISSING.

    Hyphens in field names are underscores; keys of a mapping may contain dots.
    """
    done: Path = ()
    parts = path.split(".") if path else []
    while parts:
        key: str | int = parts.pop(0)
        while isinstance(node, dict) and key not in node and parts:
            key = f"{key}.{parts.pop(0)}"
        if isinstance(node, Node):
            key = str(key).replace("-", "_")
        elif isinstance(node, tuple | list) and str(key).isdecimal():
            key = int(key)
        done, value = (*done, key), value_at(cast(Any, node), key)
        yield node, done, value
        node = value


def field_at(root: Node, path: Path) -> FieldInfo | None:
    """The field to which a path leads; None for a list item, and in the user area."""
    node = reduce(value_at, path[:-1], root)
    return type(node).__setpoint__.fields.get(str(path[-1])) if isinstance(node, Node) else None


def missing_place(root: Node, path: Path) -> Invalid:
    """The error for a reference to a field that does not exist."""
    name = dotted(path)
    for holder, place, value in steps(root, dotted(path[:-1])):
        if value is None and isinstance(holder, Node):
            chain = chain_of(holder, str(place[-1]))
            origin = f" ({chain[-1][0].describe(place)})" if chain else ""
            return Invalid(f"refers to {name}, but {dotted(place)} is null{origin}")
    hint = location_hint(type(root), name)
    if not hint and len(path) == 1 and name.isupper():
        hint = from_environment(name, type(root).__setpoint__.environment_prefix)
    return Invalid(f"refers to {name}, which does not exist", hint=hint)


# Leaves: every value with its role and its layers.


class Leaf(NamedTuple):
    """One value in a tree, with its effective role and the layers that set it."""

    path: Path
    value: Any
    role: Role
    chain: Chain

    @property
    def key(self) -> str:
        """The dotted path."""
        return dotted(self.path)

    @property
    def origin(self) -> Origin:
        """The origin of the winning layer."""
        return self.chain[-1][0] if self.chain else UNTOUCHED

    def describe_origin(self) -> str:
        """Describe the winning origin, for example `exp.toml:3:1`."""
        return self.origin.describe(self.path)


def effective_role(outer: Role, inner: Role) -> Role:
    """The role of a field inside a section: identity only if both are."""
    for role in (RUNTIME, BUDGET):
        if role in (outer, inner):
            return role
    return IDENTITY


def leaves(config: Node, path: Path = (), role: Role = IDENTITY) -> Iterator[Leaf]:
    """Every value in a tree, in order of declaration.

    Lists of plain values are one leaf; lists of sections are walked into. A null section is a leaf.
    The tag of a variant is a leaf named `type`. The values of a shared section are leaves at its
    first path; each other path is one leaf, a reference to the first, because sharing one object is
    part of the configuration.
    """
    roles: dict[int, Role] = {}
    while True:
        walk = _Walk(roles)
        walk.fields(config, path, role, [])
        if not walk.promoted:
            return iter(walk.leaves)
        # A stronger role at a later path applies to the values as well.
        roles = {**roles, **walk.promoted}


class _Walk:
    """One walk over the values of a tree.

    `roles` are the roles of shared sections by their later paths; `promoted` are roles found after
    the first path had been visited.
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
            field_role = effective_role(role, info.role) if info.role not in (None, role) else role
            if value is None and name in cls.added:
                # An installed but unused package changes no fingerprint.
                field_role = RUNTIME
            self._value(info.type, value, (*path, name), field_role, chains.get(name, []))

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
            # Null or empty where sections are allowed: its role is at most theirs.
            roles = {cls.__setpoint__.role for cls in section_classes(kind)}
            role = effective_role(role, roles.pop()) if len(roles) == 1 else role
            self.leaves.append(Leaf(path, kind.dump(value), role, chain))
        else:
            items = kind.items(value)
            if isinstance(value, dict):  # the order of keys has no meaning
                items = sorted(items, key=lambda item: item[0])
            for key, item, inner in items:
                placed = state_of(item).placed if isinstance(item, Node) else None
                self._value(inner, item, (*path, key), role, chain if placed is None else placed)

    def _section(self, section: Node, path: Path, role: Role, chain: Chain) -> None:
        cls = type(section).__setpoint__
        if id(section) in self._first:
            first, known, declared = self._first[id(section)]
            if effective_role(role, known) is not role and role is not known:
                self.promoted[id(section)] = role
            # The reference to a later path was given at the first one.
            reference, role = reference_to(first), effective_role(role, cls.role)
            self.leaves.append(Leaf(path, reference, role, chain or declared))
            return
        promoted = self.roles.get(id(section), role)
        role = promoted if effective_role(role, promoted) is role else role
        if cls.tag is not None:
            self.leaves.append(
                Leaf((*path, "type"), cls.tag, effective_role(role, cls.role), chain)
            )
        elif not cls.fields:  # no leaf would represent it otherwise
            self.leaves.append(Leaf(path, {}, effective_role(role, cls.role), chain))
        self.fields(section, path, role, chain)


def free_leaves(area: Free, path: Path, role: Role) -> Iterator[Leaf]:
    """The values of a free area at any depth."""
    for key, value in area.items():
        if isinstance(value, Free):
            yield from free_leaves(value, (*path, key), role)
        else:
            yield Leaf((*path, key), Free(x=value).dump()["x"], role, area.chain(key))


def is_default(config: Node, leaf: Leaf) -> bool:
    """True if a value equals its declared default, even if a layer set it.

    A value set for a derived field is not a default.
    """
    if leaf.origin.layer == DEFAULT:
        return True
    place = leaf.path
    if place[-1] == "type" and field_at(config, place) is None:
        place = place[:-1]  # the tag of a section
    end = len(place)
    while (info := field_at(config, place[:end])) is None:
        end -= 1  # an item has the default of its list
        if end == 0:
            return False
    if info.derived or info.required:
        return False
    default = reduce(value_at, place[end:], info.initial())
    return same(plain(leaf.value), plain(default))


def entries_of(config: Node, leaf: Leaf) -> list[Leaf]:
    """Each entry of a mapping that a layer set, as a leaf.

    A layer is listed for each entry that it adds or changes; the chain of the mapping contains the
    complete value of each layer.
    """
    entries = _mapping(leaf.value)
    if not (entries and leaf.chain):
        return []
    info = field_at(config, leaf.path)
    before = _mapping(plain(info.initial() if info is not None else None))
    chains: dict[str, Chain] = {}
    for origin, value in leaf.chain:
        current = _mapping(plain(value))
        for key in current:
            if key not in before or not same(before[key], current[key]):
                chains.setdefault(key, []).append((origin, _mapping(value)[key]))
        before = current
    return [
        Leaf((*leaf.path, key), value, leaf.role, chains.get(key, []))
        for key, value in entries.items()
    ]


def _mapping(value: object) -> dict[str, object]:
    return cast(dict[str, object], value) if isinstance(value, dict) else {}


# Values replaced by later layers.


def dropped_values(config: Node, place: str = "") -> Iterator[str]:
    """Dropped values as lines, optionally only those at a path.

    Values from a preset in one section share a line, since they were chosen for its variant.
    """
    lines: dict[tuple[object, str], list[Leaf]] = {}
    for leaf, reason in dropped_leaves(config):
        if place and not within(leaf.key, place):
            continue
        preset = leaf.describe_origin().partition(" (")[0]
        group = (leaf.path[:-1], preset) if leaf.origin.layer == PRESET else leaf.path
        lines.setdefault((group, reason), []).append(leaf)
    for (_, reason), (first, *others) in lines.items():
        values = [f"{first.key} = {for_error(first.value)}"]
        values += [f"{leaf.path[-1]} = {for_error(leaf.value)}" for leaf in others]
        origin = first.describe_origin()
        origin = origin.partition(" (")[0] if others else origin
        yield f"{', '.join(values)}, from {origin}: {reason}"


def dropped_leaves(config: Node, place: Path = ()) -> Iterator[tuple[Leaf, str]]:
    """Dropped values as leaves, each with the reason; `place` is the path of the config."""
    for path, section in sections(config, place):
        for name, value, origin, reason in state_of(section).dropped:
            chain = chain_of(section, name)
            if chain and chain[-1][0].layer != DEFAULT and chain[-1][0].order > origin.order:
                continue  # another value has been set since
            inside = leaves(value, (*path, name)) if isinstance(value, Node) else ()
            given = [leaf for leaf in inside if leaf.origin.layer != DEFAULT]
            for leaf in given or [Leaf((*path, name), value, IDENTITY, [(origin, value)])]:
                yield leaf, reason


def overridden(config: Node) -> Iterator[str]:
    """Values of modifiers that a later layer replaced."""
    for leaf in leaves(config):
        by_modifier = [
            (origin, value)
            for origin, value in leaf.chain[:-1]
            if origin.layer == MODIFIER and not isinstance(origin, Recorded)
        ]
        if not by_modifier:
            continue
        origin, value = by_modifier[-1]
        last_origin, last = leaf.chain[-1]
        is_modifier = last_origin.layer == MODIFIER and last_origin.label == origin.label
        if is_modifier or last_origin.layer in (DERIVED, REFERENCE) or last == value:
            continue
        is_section = isinstance(value, Node)
        text = (type(value).__setpoint__.tag or "a section") if is_section else for_error(value)
        source = last_origin.describe(leaf.path)
        yield f"{leaf.key} = {text} of --with {origin.label}, by {source}"


Places = dict[int, Path]
"""The first place of each section by identity; other places are written as references."""


def first_places(config: Node, path: Path = ()) -> Places:
    """The first path of each section in a tree."""
    return {id(section): place for place, section in sections(config, path)}


def to_plain(
    config: Node,
    path: Path = (),
    places: Places | None = None,
    default: Node | None = None,
    replace_mappings: bool = False,
) -> dict[str, Any]:
    """A config as nested dicts and lists, complete, with `type` first in variants.

    Arguments:
        config: a draft or a resolved config; fields without a value yet are omitted.
        replace_mappings: whether mappings replace existing ones, as in a record; a file adds to the
            default entries, so it must remove entries that the mapping lacks.

    Returns:
        plain data that reads back as an equal config; a shared section is written at its first
        path, and as a reference to that path elsewhere.
    """
    known = first_places(config, path) if places is None else places
    same_class = default if type(default) is type(config) else None
    cls = type(config).__setpoint__
    result: dict[str, Any] = {} if cls.tag is None else {"type": cls.tag}

    def inside(section: Node, place: Path) -> dict[str, Any]:
        return to_plain(section, place, known, None, replace_mappings)

    for name, info in cls.fields.items():
        value, place = value_or_missing(config, name), (*path, name)
        if value is MISSING:
            continue
        is_first = known.get(id(value), place) == place
        if isinstance(value, Node) and not replace_mappings and is_first:
            result[name] = to_plain(value, place, known, _default(info, same_class))
            continue
        result[name] = plain_items(info.type, value, place, known, inside)
        if isinstance(value, dict) and not replace_mappings:
            removed = _removed(cast(dict[str, Any], value), _default(info, same_class))
            result[name] = {**removed, **result[name]}
    return result


def _default(info: FieldInfo, config: Node | None) -> Any:
    """The default of a field at its path."""
    return info.initial() if config is None else value_or_missing(config, info.name)


def _removed(value: dict[str, Any], default: Any) -> dict[str, list[str]]:
    """The key in a mapping that removes default keys."""
    if not isinstance(default, dict):
        return {}
    removed = [key for key in cast(dict[str, Any], default) if key not in value]
    return {REMOVE: removed} if removed else {}


def plain_items(
    kind: FieldType, value: Any, path: Path, places: Places, plain: Callable[[Node, Path], Any]
) -> Any:
    """Convert a value to plain data, sections by a function.

    A section that was written already becomes a reference to its first path.
    """
    if value.__class__ in PLAIN:
        return value
    if isinstance(value, Node):
        first = places.get(id(value), path)
        return plain(value, path) if first == path else reference_to(first)
    if isinstance(value, Reference):
        return value.text
    if not kind.nested:
        return kind.dump(value)
    items = (
        (key, plain_items(inner, item, (*path, key), places, plain))
        for key, item, inner in kind.items(value)
    )
    return dict(items) if isinstance(value, dict) else [item for _, item in items]


def to_minimal(
    config: Node, default: Node | None = None, path: Path = (), places: Places | None = None
) -> dict[str, Any]:
    """Only the differences from the defaults, with references as given and no derived values.

    Composing the result over the defaults gives an equal config. For `path` and `places` see
    `to_plain`.
    """
    places = first_places(config, path) if places is None else places
    result: dict[str, Any] = {}
    cls = type(config)
    base = default if type(default) is cls else None
    field_base = None
    if default is not None and hasattr(cls, "__setpoint_open__"):
        base, field_base = _default_of_import(config, default)
    if cls.__setpoint__.tag is not None and base is None:
        result["type"] = cls.__setpoint__.tag
    for name, info in cls.__setpoint__.fields.items():
        value = given(config, name)
        if value is MISSING:
            continue
        place = (*path, name)
        if base is None and (field_base is None or info.required):
            initial = _default(info, None)
        else:
            initial = value_or_missing(base or field_base or config, name)
        if isinstance(value, Node):
            if places.get(id(value), place) != place:
                result[name] = reference_to(places[id(value)])
                continue
            inner_default = initial if isinstance(initial, Node) else None
            inner = to_minimal(value, inner_default, place, places)
            if inner or inner_default is None:
                result[name] = inner
        elif isinstance(value, Reference):
            result[name] = value.text
        else:
            reduced = minimal_items(info.type, value, place, places)
            minimal = None if initial is MISSING else minimal_items(info.type, initial, place, {})
            if initial is MISSING or not same(reduced, minimal):
                if isinstance(value, dict):
                    reduced = {**_removed(cast(dict[str, Any], value), initial), **reduced}
                result[name] = reduced
    return result


def _default_of_import(config: Node, default: Node) -> tuple[Node | None, Node | None]:
    """The default for an imported component as a whole, or only for its typed fields.

    Naming a target resets its arguments, so arguments equal to the default's are omitted only if
    nothing removes arguments.
    """
    if type(default).__setpoint__.cls is not type(config).__setpoint__.cls:
        return None, None
    is_same = type(default) is type(config) and given(default, "target") == given(config, "target")
    return (default, None) if is_same else (None, default)


def given(config: Node, name: str) -> Any:
    """The value given to a field, or its reference; MISSING if it is derived or required."""
    chain = chain_of(config, name)
    layer = chain[-1][0].layer if chain else None
    if layer == DERIVED:
        return MISSING
    return chain[-2][1] if layer == REFERENCE else value_or_missing(config, name)


def minimal_items(
    kind: FieldType, value: Any, path: Path = (), places: Places | None = None
) -> Any:
    """Convert a value to plain data, its sections without defaults; see `to_plain`."""
    known = {} if places is None else places
    return plain_items(
        kind, value, path, known, lambda section, place: to_minimal(section, None, place, known)
    )
