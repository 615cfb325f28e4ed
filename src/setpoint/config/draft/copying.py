"""Copies of sections: drafts, the tree that resolve works on, and a change of variant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..values.containers import (
    CheckedDict,
    CheckedList,
    FrozenDict,
    FrozenList,
    last_change,
    title_of,
)
from ..values.free import Free
from ..values.node import (
    Chain,
    Node,
    State,
    chain_of,
    is_frozen,
    state_of,
    touched,
    value_or_missing,
)
from ..values.origin import (
    COMMAND_LINE,
    DEFAULT,
    DERIVED,
    ENVIRONMENT,
    PROGRAM,
    REFERENCE,
    SWEEP,
    Origin,
    Recorded,
)
from ..words.errors import Caution, Invalid
from ..words.shown import children, rebuild
from .walk import PLAIN, UNTOUCHED, sections

if TYPE_CHECKING:
    from ..types.base import FieldType

C = TypeVar("C", bound=Node)
Dropped = list[tuple[str, object, Origin, str]]
Packed = tuple[bool, dict[str, Any], dict[str, Chain], Dropped, tuple[Caution, ...]]
# What resolve finds out by itself, and so finds out again.
COMPUTED = (DERIVED, REFERENCE)
# All flags are one layer, as are all variables; each file is a layer of its own. The values of a
# point of a sweep stand where the flags of its own command line would.
MANY_ORIGINS = {
    ENVIRONMENT: ENVIRONMENT,
    COMMAND_LINE: COMMAND_LINE,
    SWEEP: COMMAND_LINE,
    PROGRAM: PROGRAM,
}


class Copies(dict[int, Node]):
    """The copies made so far, by the identity of their originals."""

    # The resolved config that the draft is of, if it is of one.
    original: Node | None = None
    # Whether a section of it has been put into a second place of the draft.
    tied = False
    # Whether a draft holds a resolved section of another config.
    foreign = False


def draft_of(config: C) -> C:
    """A mutable copy; no change of it reaches the original.

    What was computed at resolve is forgotten, so that it is computed anew; a section that stands
    in two places of the original stands in two places of the copy. Of a resolved config only the
    fields that were set are copied: its sections and containers, which cannot change, are copied
    when they are first looked into, and `resolve` takes over those that never were.
    """
    state = config._state  # pyright: ignore[reportPrivateUsage]
    before = state.copies if state is not None else None
    copies = Copies()
    if is_frozen(config):
        copies.original = config
    elif before is not None:
        copies.original, copies.tied = before.original, before.tied
    # What stands in several places must be copied once, wherever it is looked into first.
    lazy = state is None or not state.ties
    draft = _copy(config, copies, lazy, source=None)
    if before is not None:
        copies.update(_inherited(before, copies))
    return draft


def _inherited(before: Copies, copies: Copies) -> dict[int, Node]:
    """What a copy of a draft holds of the config that the draft was made of.

    The identity of an earlier draft's section may be another object's by now; that of a resolved
    section is not, since its copy keeps it alive.
    """
    return {
        identity: copies[id(earlier)]
        for identity, earlier in before.items()
        if identity == id(state_of(earlier).source) and id(earlier) in copies
    }


def working_copy(draft: C, reuse: bool) -> C:
    """The copy that `resolve` works on: sections are drafts, or resolved and reused as they are.

    Arguments:
        draft: the draft; it is not changed.
        reuse: whether resolved sections that nobody has looked into may be taken over. Only
            those are that stand where they stood when they were resolved, and in which nothing
            follows from values outside of them.
    """
    state = draft._state  # pyright: ignore[reportPrivateUsage]
    tied = state is not None and state.copies is not None and state.copies.tied
    reuse = reuse and not tied
    source = (draft if is_frozen(draft) else state.source) if state and reuse else None
    copies = Copies()
    copy = _copy(draft, copies, lazy=False, source=source)
    if copies.foreign and source is not None:
        # What somebody has put there may be part of what was taken over, and must stay one object.
        return working_copy(draft, reuse=False)
    return copy


def take(draft: Node, name: str) -> Any:
    """Copy a field of a draft that is still the resolved config's own, to be looked into.

    Arguments:
        name: one of the fields in its `shared`.
    """
    state = state_of(draft)
    held = state.shared.pop(name) if state.shared else None
    memo = Copies() if state.copies is None else state.copies
    value = _own(type(draft).__setpoint__.fields[name].type, held, memo)
    object.__setattr__(draft, name, value)
    chain = state.origins.get(name)
    if chain:
        chain[-1] = (chain[-1][0], value)
    return value


def own_sections(draft: Node, value: Any) -> Any:
    """A value to be set, with the draft's own copies in place of sections of its original.

    So a section of the original stays one in the draft, wherever it is put and whether or not it
    was looked into before. What would then contain itself is left as it is, and so copied apart.

    Arguments:
        value: any value; a list, tuple or mapping may hold sections.

    Returns:
        the value; sections of other configs stay as they are.
    """
    state = state_of(draft)
    memo = state.copies
    if memo is None or memo.original is None or not _may_hold(value):
        return value
    try:
        if _is_own(value):
            return value
        own = {id(section) for _, section in sections(memo.original)}
        return _with_own(value, memo, own, state.source)
    except RecursionError:
        return value  # which contains itself, and is refused where it is read


def _with_own(value: Any, memo: Copies, own: set[int], place: Node | None) -> Any:
    if isinstance(value, Node):
        above = (section for _, section in sections(value))
        if id(value) not in own or any(section is place for section in above):
            return value
        memo.tied = True
        return _copy(value, memo, lazy=True, source=None)
    return rebuild(value, lambda item: _with_own(item, memo, own, place))


def _copy(config: C, memo: Copies, lazy: bool, source: Node | None) -> C:
    """A copy of one section and of what is below it.

    `source` is the resolved section that stands in this place, if its parts may be reused.
    """
    found: Any = memo.get(id(config))
    if found is not None:
        return found
    cls = type(config)
    copy = cls.__new__(cls)
    memo[id(config)] = copy
    new = State()
    object.__setattr__(copy, "_state", new)
    state: State | None = config._state  # pyright: ignore[reportPrivateUsage]
    if state is None:
        state = State()
    frozen, shared, origins = state.frozen, state.shared or {}, state.origins
    new.dropped = state.dropped[:]
    # Keeps what `memo` names by its identity alive as long as the copy is.
    new.source, new.copies = (config if frozen else state.source), memo
    put = object.__setattr__
    for name, info in cls.__setpoint__.fields.items():
        past = origins.get(name)
        if past is None and info.constant:
            continue
        chain = past[:] if past else []
        untouched = frozen or name in shared
        if chain and chain[-1][0].layer in COMPUTED:
            chain.pop()
            if not chain:
                continue
            value, untouched = chain[-1][1], False
        elif name in shared:
            value = shared[name]
            # What is whole stands nowhere else, unless somebody has put it there; other sections
            # may have been copied elsewhere.
            alone = _is_whole(info.type, value) and not (state.copies and state.copies.tied)
            if not alone and _is_copied(info.type, value, state.copies):
                value, untouched = take(config, name), False
        else:
            try:
                value = object.__getattribute__(config, name)
            except AttributeError:
                continue
        if type(value) in PLAIN:
            put(copy, name, value)
        elif untouched and lazy:
            new.shared = new.shared or {}
            new.shared[name] = value
        elif untouched and source is not None and _is_whole(info.type, value):
            put(copy, name, value)
        elif isinstance(value, Node | tuple | list | dict | Free):
            changed = last_change(cast(object, value))
            before = value.before if isinstance(value, CheckedDict) else None
            below = getattr(source, name, None) if source is not None else None
            memo.foreign = memo.foreign or not (frozen or below is value or _is_own(value))
            value = _own(info.type, value, memo, lazy, below)
            put(copy, name, value)
            if changed is not None:
                if chain and before is not None:
                    chain[-1] = (chain[-1][0], before)
                chain.append((changed, value))
            elif chain:
                chain[-1] = (chain[-1][0], value)
        else:
            put(copy, name, value)
        if chain:
            new.origins[name] = chain
    return copy


def _own(
    kind: FieldType,
    value: Any,
    memo: Copies,
    lazy: bool = True,
    source: object = None,
) -> Any:
    """A copy of a field's value for the draft that will hold it."""
    if isinstance(value, Node):
        state = value._state  # pyright: ignore[reportPrivateUsage]
        # A section from elsewhere is resolved anew, whatever it was part of.
        stays = source is not None and (value is source or (state and state.source is source))
        return _copy(value, memo, lazy, cast(Node, source) if stays else None)
    return kind.replace_sections(value, lambda inner: _copy(inner, memo, lazy, None), False)


def _is_own(value: Any) -> bool:
    """Whether a draft's value is a draft itself, with all that is directly inside."""
    if isinstance(value, Node):
        return not is_frozen(value)
    if isinstance(value, Free):
        return True
    return all(_is_own(item) for _, item in children(value) if _may_hold(item))


def _may_hold(value: object) -> bool:
    return isinstance(value, Node | tuple | list | dict)


def _is_copied(kind: FieldType, value: Any, copies: Copies | None) -> bool:
    """Whether a draft holds a copy of a section that a value it has not looked into also holds."""
    return bool(copies) and any(id(section) in copies for section in _inside(kind, value))


def _is_whole(kind: FieldType, value: Any) -> bool:
    """Whether nothing in a resolved value follows from values outside of it, or stands there."""
    if isinstance(value, Node):
        return value._state is not None and value._state.whole  # pyright: ignore[reportPrivateUsage]
    return not kind.nested or all(state_of(section).whole for _, section in _sections(kind, value))


def _sections(kind: FieldType, value: Any) -> Iterable[tuple[object, Node]]:
    if isinstance(value, Node):
        return (((), value),)
    return kind.sections(value) if kind.nested and value is not None else ()


def _inside(kind: FieldType, value: Any) -> Iterator[Node]:
    """The sections of a resolved value, at any depth."""
    for _, section in _sections(kind, value):
        yield section
        for name, info in type(section).__setpoint__.fields.items():
            if not info.constant or chain_of(section, name):
                inner = getattr(section, name)
                if isinstance(inner, Node | tuple | list | dict):
                    yield from _inside(info.type, inner)


def pack(config: Node) -> Packed:
    """What another process needs to make an equal config; origins keep their words.

    Returns:
        whether it is frozen, its values, their origins, what later layers have overtaken, and
        the cautions of a resolved root.
    """
    values = {name: getattr(config, name) for name in touched(config)}
    chains = {
        name: [(origin.fixed(name), value) for origin, value in chain]
        for name in values
        if (chain := chain_of(config, name))
    }
    state = config._state or State()  # pyright: ignore[reportPrivateUsage]
    dropped = [(name, value, origin.fixed(name), why) for name, value, origin, why in state.dropped]
    return state.frozen, values, chains, dropped, state.cautions


def _same(section: Any) -> Any:
    return section


def unpack(config: Node, packed: Packed) -> None:
    """Fill a new instance with what `pack` gave."""
    frozen, values, chains, dropped, cautions = packed
    fields = type(config).__setpoint__.fields
    object.__setattr__(config, "_state", None)
    for name, value in values.items():
        if isinstance(value, tuple | list | dict) and not frozen:
            value = fields[name].type.replace_sections(value, _same, False)
        object.__setattr__(config, name, value)
    state = state_of(config)
    state.origins.update(chains)
    state.frozen, state.dropped, state.cautions = frozen, dropped, cautions


def frozen_value(value: Any) -> Any:
    """The immutable form of a field's value; sections inside stay the same objects."""
    if isinstance(value, Free):
        return value.copy(frozen=True)
    if isinstance(value, CheckedList | FrozenList):
        return FrozenList([frozen_value(item) for item in value], title_of(value))
    if isinstance(value, CheckedDict | FrozenDict):
        items = {key: frozen_value(item) for key, item in value.items()}
        return FrozenDict(items, title_of(value))
    if isinstance(value, tuple):
        return tuple(frozen_value(item) for item in cast(tuple[Any, ...], value))
    return value


def one_layer(one: Origin, other: Origin) -> bool:
    """Whether two origins are of one layer, so that neither is later than the other."""
    if isinstance(one, Recorded) or isinstance(other, Recorded):
        return isinstance(one, Recorded) and isinstance(other, Recorded)
    if one.layer in MANY_ORIGINS:
        return MANY_ORIGINS[one.layer] == MANY_ORIGINS.get(other.layer)
    return one.layer == other.layer and one.label == other.label


def keep_shared(old: Node, new: Node) -> None:
    """Carry the values that were set over to another variant, where it has the same fields.

    Arguments:
        new: a fresh section of the other variant; what it cannot take is remembered as dropped.
    """
    fields = type(new).__setpoint__.fields
    state: State = state_of(new)
    for name in touched(old):
        chain = chain_of(old, name)
        value: Any = getattr(old, name)
        if chain and chain[-1][0].layer == DEFAULT:
            continue
        if not chain and not is_changed(value):
            continue
        origin = chain[-1][0] if chain else UNTOUCHED
        try:
            if name not in fields:
                raise Invalid("the new variant has no such field")
            object.__setattr__(new, name, fields[name].read(value, origin))
            state.origins[name] = list(chain)
        except Invalid:
            reason = f"type = {type(new).__setpoint__.tag} has no such field"
            state.dropped.append((name, value, origin, reason))


def is_changed(value: object) -> bool:
    """Whether something was set inside a value that itself stands at its default.

    Returns:
        True for a section, or a free area, in which a field was set, also as an item of a list or
        mapping; and for a list or mapping that was changed in place.
    """
    if isinstance(value, Node):
        return any(
            chain_of(value, name) or is_changed(value_or_missing(value, name))
            for name in touched(value)
        )
    if isinstance(value, Free):
        return any(True for _ in value.items())
    if isinstance(value, tuple | list | dict):
        held = cast(object, value)
        return last_change(held) is not None or any(is_changed(item) for _, item in children(held))
    return False


def dropped_by(section: Node, switch: Origin) -> Iterator[tuple[str, object, Origin]]:
    """The values that were lost although the layer that switched the variant had set them.

    What an earlier layer set was meant for the other variant, and is only named as dropped.

    Arguments:
        section: the fresh section, after `keep_shared`.
    """
    for name, value, origin, _ in state_of(section).dropped:
        if origin is switch or (switch.layer in MANY_ORIGINS and one_layer(origin, switch)):
            yield name, value, origin
