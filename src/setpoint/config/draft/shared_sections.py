"""One section in several places, references to sections, and entries of mappings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from typing import Any, cast

from ..schema.field import FieldInfo
from ..types.base import PLAIN
from ..values.containers import Free
from ..values.node import (
    Chain,
    Node,
    chain_of,
    is_frozen,
    replace_given,
    state_of,
    value_or_missing,
)
from ..values.origin import UNTOUCHED
from ..values.reference import Reference, from_environment, may_refer
from ..words.errors import Invalid, SetpointError
from ..words.names import Path, dotted
from ..words.plain_data import (
    MISSING,
    children,
    item_at,
    nested,
    plain,
    same,
)
from .copying import holds
from .unknown_keys import location_hint
from .walk import Leaf, leaves, sections

PLACES = 10_000  # sections of one tree, each counted in every place where it stands


def value_at(node: Any, part: str | int) -> Any:
    """The value of a field, or an item of a list, a mapping or a free area, or MISSING."""
    if isinstance(node, Node):
        known = part in type(node).__setpoint__.fields
        return value_or_missing(node, str(part)) if known else MISSING
    if isinstance(node, Free):
        return cast(dict[str | int, Any], dict(node.items())).get(part, MISSING)
    return item_at(node, part)


def missing_place(root: Node, path: Path) -> Invalid:
    """The error for a reference that leads nowhere."""
    name = dotted(path)
    absent = _null_above(root, path)
    if absent:
        return Invalid(f"refers to {name}, but {absent}")
    hint = location_hint(type(root), name)
    if not hint and len(path) == 1 and name.isupper():
        hint = from_environment(name, type(root).__setpoint__.environment_prefix)
    return Invalid(f"refers to {name}, which does not exist", hint=hint)


def _null_above(root: Node, path: Path) -> str:
    """The section above a place that is null, with its origin; the empty text if there is none."""
    node: Any = root
    for at, part in enumerate(path[:-1], 1):
        if not isinstance(node, Node) or part not in type(node).__setpoint__.fields:
            return ""
        chain, node = chain_of(node, str(part)), value_or_missing(node, str(part))
        if node is None:
            origin = f" ({chain[-1][0].describe(path[:at])})" if chain else ""
            return f"{dotted(path[:at])} is null{origin}"
    return ""


def with_items(value: Any, changes: Mapping[Path, object], inside: Path = ()) -> Any:
    """A list, tuple or mapping with some of its items replaced, as plain containers."""
    if inside in changes:
        return changes[inside]
    items = {k: with_items(item, changes, (*inside, k)) for k, item in children(value)}
    if isinstance(value, tuple | list):
        return list(items.values())
    return items if isinstance(value, dict) else value


def contains(outer: Node, inner: Node) -> bool:
    """Whether a section is another one, or holds it at any depth."""
    return any(section is inner for _, section in sections(outer))


def bind(root: Node, placed: Iterable[tuple[Path, Node]] | None = None) -> bool:
    """Put the section itself wherever a reference to a section stands.

    A reference to what is not there, or does not fit, stays as it is; a later layer may set what
    is missing, and `resolve` reports it otherwise.

    Arguments:
        placed: its sections with their paths; found anew if None.
    """
    waiting = [
        (section, name)
        for _, section in (sections(root) if placed is None else placed)
        if not is_frozen(section)  # else no reference has been left
        for name, value in list(vars(section).items())
        if value.__class__ not in PLAIN
        and not isinstance(value, Node)
        and type(section).__setpoint__.fields[name].type.nested
        and may_refer(value)
    ]
    bound = False
    again = bool(waiting)
    while again:
        # One reference may lead through another, whatever their order.
        count = sum(_bind(root, section, name) for section, name in waiting)
        again, bound = count > 0, bound or count > 0
    return bound


def _bind(root: Node, section: Node, name: str) -> bool:
    chain = chain_of(section, name)
    value: Any = value_or_missing(section, name)
    found: dict[Path, object] = {}
    for inside, reference in references(value):
        target = _target(root, reference)
        if isinstance(target, Node) and not contains(target, section):
            found[inside] = target
    if not found:
        return False
    info = type(section).__setpoint__.fields[name]
    origin = chain[-1][0]
    try:
        stored = info.read(with_items(value, found), origin)
    except Invalid:
        return False
    _replace(section, info, stored)
    return True


def _target(root: Node, reference: Reference) -> Any:
    """What a reference names, as far as it is known without computing anything."""
    return reduce(value_at, reference.path, root) if reference.path else MISSING


def references(value: Any) -> Iterator[tuple[Path, Reference]]:
    """The references in a value, at any depth, each with the path that leads to it."""
    return ((inside, part) for inside, part in nested(value) if isinstance(part, Reference))


def switch(root: Node, old: Node, new: Node) -> None:
    """Put a section wherever another one stands, if that is in several places.

    Raises:
        Invalid: if one of the places cannot take it; nothing has been changed then.
    """
    changes: list[tuple[Node, FieldInfo, object]] = []
    count = 0
    for path, section, holders in _touched_sections(root, (), set()):
        for name, value in holders:
            found = {inside: new for inside, part in nested(value) if part is old}
            if not found:
                continue
            count += len(found)
            info = type(section).__setpoint__.fields[name]
            chain = chain_of(section, name)
            try:
                stored = info.read(with_items(value, found), chain[-1][0] if chain else UNTOUCHED)
            except Invalid as error:
                place = dotted((*path, name))
                raise Invalid(
                    f"is the same section as {place}, which cannot be of this type", error.valid
                ) from None
            changes.append((section, info, stored))
    for section, info, stored in changes if count > 1 else ():
        _replace(section, info, stored)


def _touched_sections(
    config: Node, path: Path, seen: set[int]
) -> Iterator[tuple[Path, Node, list[tuple[str, Any]]]]:
    """The sections in which something was set or looked at, and what may hold sections there.

    No default is made for this.
    """
    seen.add(id(config))
    held = vars(config)
    names = [name for name, value in held.items() if value.__class__ not in PLAIN and holds(value)]
    names.sort(key=type(config).__setpoint__.plan.order.__getitem__)
    holders = [(name, value_or_missing(config, name)) for name in names]
    yield path, config, holders
    for name, value in holders:
        for inside, part in nested(value):
            if isinstance(part, Node) and id(part) not in seen:
                yield from _touched_sections(part, (*path, name, *inside), seen)


def _replace(section: Node, info: FieldInfo, stored: object) -> None:
    """Put another value into a field without a new layer: it is the same setting."""
    object.__setattr__(section, info.name, stored)
    replace_given(state_of(section).layers, {info.name: stored})


def shared_places(config: Node) -> dict[Path, Path]:
    """The further places of sections that stand in several, each with the first place."""
    again: list[tuple[Path, Node]] = []
    first = {id(section): path for path, section in sections(config, (), again)}
    return {path: first[id(section)] for path, section in again}


def check_size(config: Node) -> None:
    """Refuse a tree in which references to sections multiply beyond what anybody means.

    Raises:
        SetpointError: if its sections, each counted in every place where it stands, are too many.
    """
    sizes: dict[int, int] = {}

    def size(section: Node) -> int:
        known = sizes.get(id(section))
        if known is None:
            fields = type(section).__setpoint__.fields
            inner = (_inside(fields[name], section) for name in fields)
            known = sizes[id(section)] = 1 + sum(size(part) for parts in inner for part in parts)
        return known

    if size(config) > PLACES:
        raise SetpointError(
            f"the configuration holds more than {PLACES:,} sections, each counted in every place "
            f"that refers to it"
        )


def _inside(info: FieldInfo, section: Node) -> list[Node]:
    value: Any = value_or_missing(section, info.name)
    if isinstance(value, Node):
        return [value]
    if isinstance(value, tuple | list | dict) and info.type.nested:
        return [part for _, part in info.type.sections(value)]
    return []


def shared(config: Node) -> Iterator[str]:
    """What stands in several places, in words.

    Returns:
        for each place but the first of its section, for instance `key is query, from exp.toml:3:1`.
    """
    places = shared_places(config)
    for leaf in leaves(config) if places else ():
        first = places.get(leaf.path)
        if first is not None:
            yield f"{leaf.key} is {dotted(first)}, from {leaf.describe_origin()}"


def entries_of(config: Node, leaf: Leaf) -> list[Leaf]:
    """Each entry of a mapping as a leaf of its own.

    A layer counts for an entry that it brings or changes; the chain of the mapping holds the whole
    value of each layer.

    Returns:
        the entries, in the mapping's order; none for what is no mapping, or that no layer touched.
    """
    held = _mapping(leaf.value)
    if not (held and leaf.chain):
        return []
    info = field_at(config, leaf.path)
    usual: object = info.initial() if info is not None else None
    before = _mapping(plain(usual))
    chains: dict[str, Chain] = {}
    for origin, value in leaf.chain:
        now = _mapping(plain(value))
        for key in now:
            if key not in before or not same(before[key], now[key]):
                chains.setdefault(key, []).append((origin, _mapping(value)[key]))
        before = now
    return [
        Leaf((*leaf.path, key), value, leaf.role, chains.get(key, []))
        for key, value in held.items()
    ]


def _mapping(value: object) -> dict[str, object]:
    return cast(dict[str, object], value) if isinstance(value, dict) else {}


def field_at(root: Node, path: Path) -> FieldInfo | None:
    """The field that a path leads to.

    Returns:
        the field; None for an item of a list or mapping, and in the user area.
    """
    node = reduce(value_at, path[:-1], root)
    return type(node).__setpoint__.fields.get(str(path[-1])) if isinstance(node, Node) else None
