"""Changes to whole sections: copies, the freeze, another variant, references to sections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, Generic, TypeVar, cast

from ..schema.field import FieldInfo
from ..types.base import replace_in_item
from ..values.containers import (
    CheckedDict,
    CheckedList,
    Free,
    FrozenDict,
    FrozenList,
    last_change,
)
from ..values.node import (
    Chain,
    Layer,
    Node,
    State,
    chain_of,
    chains_of,
    is_changed,
    is_frozen,
    replace_given,
    state_of,
)
from ..values.origin import (
    COMMAND_LINE,
    DEFAULT,
    DERIVED,
    ENVIRONMENT,
    PRESET,
    PROGRAM,
    REFERENCE,
    SWEEP,
    UNTOUCHED,
    Origin,
    Recorded,
)
from ..values.reference import Reference, may_refer
from ..words.errors import Caution, Invalid
from ..words.names import Path, dotted
from ..words.plain_data import MAX_DEPTH, MISSING, children, nested
from .walk import holders, sections, value_at

C = TypeVar("C", bound=Node)
Dropped = tuple[tuple[str, Any, Origin, str], ...]
Packed = tuple[
    bool, dict[str, Any], dict[str, Chain], Dropped, tuple[Caution, ...] | None, Chain | None
]
COMPUTED = (DERIVED, REFERENCE)
"""Layers that resolve computes, and so computes again."""
MANY_ORIGINS = {
    ENVIRONMENT: ENVIRONMENT,
    COMMAND_LINE: COMMAND_LINE,
    SWEEP: COMMAND_LINE,
    PROGRAM: PROGRAM,
}
"""All flags are one layer, as are all variables; each file is a separate layer. The values of a
point of a sweep have the place of the flags of its command line."""


def draft_of(config: C) -> C:
    """Return a mutable copy that shares nothing with the original.

    Values computed at resolve are removed and computed again; shared sections are shared in the
    copy.
    """
    return Copies(config).root


class Copies(Generic[C]):
    """Copies of the sections of a config; `of` maps the identity of an original to its copy.

    A shared section is copied once.

    Raises:
        SetpointError: a section contains itself, or sections are nested too deeply.
    """

    def __init__(self, config: C) -> None:
        self.of: dict[int, Node] = {}
        self._config = config
        self._open: set[int] = set()
        self.root: C = self._copy(config)

    def _copy(self, config: Node) -> Any:
        """Copy one section with its mutable values; computed values are omitted."""
        if id(config) in self.of:
            return self.of[id(config)]
        if id(config) in self._open or len(self._open) == MAX_DEPTH:
            sections(self._config, make=False)  # refuses the endless copy
        self._open.add(id(config))
        old = state_of(config)
        values, state = vars(config).copy(), State(old.layers)
        state.dropped, state.placed, state.replaced = old.dropped, old.placed, old.replaced
        _forget_computed(values, state.layers)
        copy = object.__new__(type(config))
        object.__setattr__(copy, "__dict__", values)
        object.__setattr__(copy, "_state", state)
        copied: dict[str, Any] = {}
        for name in holders(copy, make=False):
            value = values[name]
            if not isinstance(value, Node | tuple | list | dict | Free):
                continue
            kind = type(copy).__setpoint__.fields[name].type
            stored = values[name] = kind.replace_sections(value, self._copy)
            changed = last_change(cast(object, value))
            if changed is None:
                copied[name] = stored
                continue
            if isinstance(value, CheckedDict) and value.before is not None:
                replace_given(state.layers, {name: value.before})
            state.layers.append((changed, {name: stored}))
        replace_given(state.layers, copied)
        self._open.remove(id(config))
        self.of[id(config)] = copy
        return copy


def _forget_computed(values: dict[str, Any], layers: list[Layer]) -> None:
    """Remove computed values, so that they are computed again."""
    computed = {name for origin, given in layers if origin.layer in COMPUTED for name in given}
    if computed:
        layers[:] = [layer for layer in layers if layer[0].layer not in COMPUTED]
    for name in computed:
        given = [given[name] for _, given in layers if name in given]
        if given:
            values[name] = given[-1]
        else:
            values.pop(name, None)


def freeze(section: Node) -> None:
    """Make a section immutable, and fill in every default."""
    state = state_of(section)
    names = holders(section)
    # Filled slots also turn later reads into plain attribute reads.
    given, fields = vars(section), type(section).__setpoint__.fields.items()
    unset = {name: info.default for name, info in fields if name not in given and info.constant}
    values = unset | given
    for name in state.invalid:
        values.pop(name, None)  # invalid, and so unreadable
    for name in names:
        if name in values:
            values[name] = frozen_value(values[name])
    object.__setattr__(section, "__dict__", values)
    state.frozen = True


def frozen_value(value: Any) -> Any:
    """The immutable form of a field's value; sections inside it stay the same objects."""
    if isinstance(value, Free):
        return value if value.is_frozen() else value.copy(frozen=True)
    if isinstance(value, CheckedList):
        return FrozenList(map(frozen_value, value), value.kind.title)
    if isinstance(value, CheckedDict):
        return FrozenDict({k: frozen_value(item) for k, item in value.items()}, value.kind.title)
    if isinstance(value, tuple):
        return tuple(map(frozen_value, cast(tuple[Any, ...], value)))
    return value


def pack(config: Node) -> Packed:
    """The content of a config, for `unpack` in another process."""
    state, values = state_of(config), vars(config)
    chains = {
        name: [(origin.fixed(name), value) for origin, value in chain]
        for name, chain in chains_of(config).items()
        if name in values
    }
    dropped = tuple(
        (name, value, origin.fixed(name), reason) for name, value, origin, reason in state.dropped
    )
    placed = state.placed and [(origin.fixed("type"), tag) for origin, tag in state.placed]
    return state.frozen, values, chains, dropped, state.cautions, placed


def unpack(config: Node, packed: Packed) -> None:
    """Fill a new instance with the result of `pack`."""
    frozen, values, chains, dropped, cautions, placed = packed
    fields: dict[str, FieldInfo] = type(config).__setpoint__.fields
    object.__setattr__(config, "_state", State())
    for name, value in values.items():
        if isinstance(value, tuple | list | dict) and not frozen:
            value = fields[name].type.replace_sections(value, lambda section: section)
        object.__setattr__(config, name, value)
    state = state_of(config)
    for name, chain in chains.items():
        state.layers.extend((origin, {name: value}) for origin, value in chain)
    state.frozen, state.dropped, state.cautions = frozen, tuple(dropped), cautions
    state.placed = placed


# Changes from one variant of a section to another.


def one_layer(origin: Origin, other: Origin) -> bool:
    """True if two origins belong to the same layer, so that neither is later."""
    if isinstance(origin, Recorded) or isinstance(other, Recorded):
        return isinstance(origin, Recorded) and isinstance(other, Recorded)
    if origin.layer in MANY_ORIGINS:
        return MANY_ORIGINS[origin.layer] == MANY_ORIGINS.get(other.layer)
    return origin.layer == other.layer and origin.label == other.label


def successor(cls: type[C], history: Sequence[Node], moved: Node | None) -> C:
    """Build a section of another variant, carrying over values set on earlier variants.

    It starts from the last section of that variant at this path. Values set on other variants since
    then are applied if they are valid; all others are recorded as dropped.

    Arguments:
        history: the previous sections at this path, from `history_of`.
        moved: the last of these sections, if it is still in place; its inner sections are moved.
    """
    classes = [type(section).__setpoint__.cls for section in history]
    start = classes.index(cls) + 1 if cls in classes else 0
    new = cast(C, draft_of(history[start - 1])) if start else cls()
    for old in history[start:]:
        _carry_over(old, new, old is moved)
    return new


def _carry_over(old: Node, new: Node, moved: bool) -> None:
    """Copy the values that were set on another variant, if this one accepts them."""
    known, state = type(new).__setpoint__, state_of(new)
    chains, kept = chains_of(old), dict[str, Any]()
    dropped = {name: (name, *rest) for name, *rest in state.dropped}
    for name in type(old).__setpoint__.fields:
        chain = chains.get(name, [])
        value: Any = vars(old).get(name)
        if not is_changed(value) and (not chain or chain[-1][0].layer == DEFAULT):
            continue
        origin = chain[-1][0] if chain else UNTOUCHED
        info = known.fields.get(name)
        reason = f"type = {known.tag} has no such field"
        try:
            before = type(old).__setpoint__.fields[name]
            is_other = info is not None and info.written != before.written
            if info is not None and origin.layer == PRESET and info.per_variant and is_other:
                reason = f"type = {known.tag} has its own default, {info.written}"
            elif info is not None:
                stored = info.read(value, origin)
                kept[name] = stored if moved else replace_in_item(info.type, stored, draft_of)
                dropped.pop(name, None)
                continue
        except Invalid as error:
            reason = f"type = {known.tag}: {name} {error.message}"
        dropped[name] = (name, value, origin, reason)
    state.dropped = cast(Dropped, tuple(dropped.values()))
    if kept:
        vars(new).update(kept)
        state.layers = [
            (origin, values)
            for layers, is_kept in ((state.layers, False), (state_of(old).layers, True))
            for origin, given in layers
            if (values := {k: v for k, v in given.items() if (k in kept) is is_kept})
        ]


# References to sections are replaced by the sections.


def references(value: Any) -> Iterator[tuple[Path, Reference]]:
    """The references in a value at any depth, each with the path that leads to it."""
    return ((inside, part) for inside, part in nested(value) if isinstance(part, Reference))


def contains(outer: Node, inner: Node) -> bool:
    """True if a section is another one, or contains it at any depth."""
    return any(section is inner for _, section in sections(outer))


def with_items(value: Any, changes: Mapping[Path, object], inside: Path = ()) -> Any:
    """A list, tuple or mapping with some of its items replaced, as plain containers."""
    if inside in changes:
        return changes[inside]
    items = {k: with_items(item, changes, (*inside, k)) for k, item in children(value)}
    if isinstance(value, tuple | list):
        return list(items.values())
    return items if isinstance(value, dict) else value


def bind(root: Node, placed: Iterable[tuple[Path, Node]] | None = None) -> bool:
    """Replace references to sections with the sections; True if any was replaced.

    A reference is kept if its target is missing or has the wrong type; a later layer may set the
    target, otherwise `resolve` reports it.

    Arguments:
        placed: the sections of the root, if known.
    """
    waiting = [
        (section, type(section).__setpoint__.fields[name])
        for _, section in (sections(root) if placed is None else placed)
        if not is_frozen(section)  # resolved sections have no references
        for name in holders(section, make=False)
        if not isinstance(vars(section)[name], Node)
        and type(section).__setpoint__.fields[name].type.nested
        and may_refer(vars(section)[name])
    ]
    bound = False
    # References may lead through each other, in any order.
    while any(_bind(root, section, info) for section, info in waiting):
        bound = True
    return bound


def _bind(root: Node, section: Node, info: FieldInfo) -> bool:
    value: Any = vars(section)[info.name]
    targets: dict[Path, object] = {}
    for inside, reference in references(value):
        target = reduce(value_at, reference.path, root) if reference.path else MISSING
        if isinstance(target, Node) and not contains(target, section):
            targets[inside] = target
    if not targets:
        return False
    try:
        _replace(section, info, _read_with(section, info, targets))
    except Invalid:
        return False
    return True


def replace_shared(root: Node, old: Node, new: Node, least: int = 2) -> None:
    """Replace a shared section at all of its paths.

    Arguments:
        least: number of paths below which it is not shared, and stays.

    Raises:
        Invalid: one of the paths cannot accept it; nothing is changed in this case.
    """
    places: list[tuple[Path, Node, FieldInfo, dict[Path, Node]]] = []
    for path, section in sections(root, make=False):
        for name in holders(section, make=False):
            inside = {place: new for place, part in nested(vars(section)[name]) if part is old}
            if inside:
                info = type(section).__setpoint__.fields[name]
                places.append(((*path, name), section, info, inside))
    if sum(len(inside) for *_, inside in places) < least:
        return
    changes: list[tuple[Node, FieldInfo, object]] = []
    for path, section, info, inside in places:
        try:
            changes.append((section, info, _read_with(section, info, inside)))
        except Invalid as error:
            raise Invalid(
                f"is the same section as {dotted(path)}, which cannot be of this type", error.valid
            ) from None
    for change in changes:
        _replace(*change)


def _read_with(section: Node, info: FieldInfo, items: Mapping[Path, object]) -> object:
    chain = chain_of(section, info.name)
    value = with_items(vars(section)[info.name], items)
    return info.read(value, chain[-1][0] if chain else UNTOUCHED)


def _replace(section: Node, info: FieldInfo, stored: object) -> None:
    """Replace the value of a field without adding a layer."""
    object.__setattr__(section, info.name, stored)
    replace_given(state_of(section).layers, {info.name: stored})
