"""Copies of sections: forks of resolved configs, the tree that resolve works on, the freeze."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

from ..types.base import PLAIN, replace_in_item
from ..values.containers import (
    CheckedDict,
    CheckedList,
    Free,
    FrozenDict,
    FrozenList,
    last_change,
    title_of,
)
from ..values.node import (
    Chain,
    Layer,
    Node,
    State,
    chain_of,
    chains_of,
    layers_of,
    replace_given,
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
    UNTOUCHED,
    Origin,
    Recorded,
)
from ..values.reference import Reference, may_refer
from ..words.errors import Caution, Invalid
from ..words.names import Path
from ..words.plain_data import MAX_DEPTH, children
from .walk import inside_itself, too_deep

C = TypeVar("C", bound=Node)
Dropped = tuple[tuple[str, Any, Origin, str], ...]
Packed = tuple[
    bool, dict[str, Any], dict[str, Chain], Dropped, tuple[Caution, ...] | None, Chain | None
]
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
HOLDERS = (Node, tuple, list, dict, Free)


def holds(value: Any) -> bool:
    """Whether a value can be changed, or has something inside that can."""
    if value.__class__ is tuple:
        return not PLAIN.issuperset(map(type, value))
    return isinstance(value, HOLDERS)


def _not_plain(values: Mapping[str, Any]) -> list[str]:
    """The fields that may hold a section, something that can be changed, or a reference."""
    return [
        name
        for name, value in values.items()
        if value.__class__ not in PLAIN
        and (value.__class__ is not tuple or not PLAIN.issuperset(map(type, value)))
    ]


def _made(like: C, values: dict[str, Any], state: State) -> C:
    """A section of the same class with these values."""
    cls = type(like)
    made = cls.__new__(cls)
    object.__setattr__(made, "__dict__", values)
    object.__setattr__(made, "_state", state)
    return made


def _forget_computed(values: dict[str, Any], state: State) -> None:
    """Forget what resolve has computed of the values of a section, so that it is computed anew."""
    last: dict[str, Origin] = {}
    computed = False
    for origin, given in state.layers:
        computed = computed or origin.layer in COMPUTED
        for name in given if computed else ():
            last[name] = origin
    if not computed:
        return
    for name, origin in last.items():
        if origin.layer not in COMPUTED:
            continue
        index = max(i for i, (_, given) in enumerate(state.layers) if name in given)
        given = dict(state.layers[index][1])
        del given[name]
        state.layers[index : index + 1] = [(origin, given)] if given else []
        before = [given[name] for _, given in state.layers if name in given]
        if before:
            values[name] = before[-1]
        else:
            values.pop(name, None)


def draft_of(config: C) -> C:
    """A mutable copy; no change of it reaches the original.

    What was computed at resolve is forgotten, so that it is computed anew; a section that stands
    in two places of the original stands in two places of the copy.
    """
    return copied_draft(config)[0]


def copied_draft(config: C) -> tuple[C, Mapping[int, Node]]:
    """A mutable copy, and the copies of a draft's sections by the identity of these."""
    copies = Copies(config)
    return copies.root, copies.of


class Copies(Generic[C]):
    """Copies of the sections of one config; each is copied once, wherever it stands.

    Arguments:
        working: whether they are what `resolve` works on, with no default missing.

    Attributes:
        of: the copies by the identity of what they are copies of.
        placed: the copies with their paths, the root first.
        again: the further places of those that stand in several.
        refers: whether there are references in it.
    """

    def __init__(self, config: C, working: bool = False) -> None:
        self.working = working
        self.of: dict[int, Node] = {}
        self.placed: list[tuple[Path, Node]] = []
        self.again: list[tuple[Path, Node]] = []
        self.refers = False
        self._open: dict[int, bool] = {}
        self.root: C = self._copy(config)
        self._fill(self.root, ())

    def _copy(self, config: Node) -> Any:
        """The copy of one section, with the values of the original still in it."""
        found = self.of.get(id(config))
        if found is not None:
            return found
        before = state_of(config)
        values, state = vars(config).copy(), State(before.layers)
        copy = self.of[id(config)] = _made(config, values, state)
        state.dropped, state.placed = before.dropped, before.placed
        state.replaced = before.replaced
        _forget_computed(values, state)  # which a record gives, too
        return copy

    def _fill(self, copy: Node, path: Path) -> None:
        """Copy in turn what a copy holds and must not have in common with its original."""
        place = self._open.get(id(copy))
        if place is not None:
            if place:
                raise inside_itself(copy, path)
            self.again.append((path, copy))
            return
        if len(path) >= MAX_DEPTH:
            raise too_deep(copy, path)
        self.placed.append((path, copy))
        self._open[id(copy)] = True
        state, values, plan = state_of(copy), vars(copy), type(copy).__setpoint__.plan
        names = _not_plain(values)
        for name in plan.factories if self.working else ():
            if name not in values:
                made = value_or_missing(copy, name)
                self.of[id(made)] = made  # it stands nowhere else
                names.append(name)
        names.sort(key=plan.order.__getitem__)
        fresh: dict[str, Any] = {}
        for name in names:
            value: Any = values[name]
            if isinstance(value, Node):
                values[name] = fresh[name] = section = self._copy(value)
                self._fill(section, (*path, name))
            elif holds(value):
                self._fill_container(copy, name, value, path, fresh)
            elif isinstance(value, Reference):
                self.refers = True
        if fresh and state.layers:
            replace_given(state.layers, fresh)
        self._open[id(copy)] = False

    def _fill_container(
        self, copy: Node, name: str, value: Any, path: Path, fresh: dict[str, Any]
    ) -> None:
        """Copy a list, a mapping or an area with the sections in it."""
        self.refers = self.refers or (self.working and may_refer(value))
        kind, layers = type(copy).__setpoint__.fields[name].type, state_of(copy).layers
        now = vars(copy)[name] = kind.replace_sections(value, self._copy, False)
        changed = last_change(cast(object, value))
        if changed is None:
            fresh[name] = now
        else:
            if isinstance(value, CheckedDict) and value.before is not None:
                replace_given(layers, {name: value.before})
            layers.append((changed, {name: now}))
        for inside, section in kind.sections(now) if kind.nested else ():
            self._fill(section, (*path, name, *inside))


def freeze(section: Node) -> None:
    """Make a section immutable, with every value in its place."""
    state, plan = state_of(section), type(section).__setpoint__.plan
    # Filled slots also make later reads plain attribute reads.
    values = vars(section)
    if len(values) < len(plan.order):
        invalid = state.invalid or ()
        for name in plan.factories:
            if name not in values and name not in invalid:
                value_or_missing(section, name)
        values = plan.constants | values
        for name in invalid:
            values.pop(name, None)  # known to be wrong, and so unreadable
        object.__setattr__(section, "__dict__", values)
    for name, value in values.items():
        if value.__class__ not in PLAIN and holds(value):
            values[name] = frozen_value(value)
    state.frozen = True


def pack(config: Node) -> Packed:
    """What another process needs to make an equal config; origins keep their words.

    Returns:
        whether it is frozen, its values, their origins, what later layers have overtaken, the
        cautions of a resolved root, and the layers that put it into a list.
    """
    values = {name: getattr(config, name) for name in touched(config)}
    chains = {
        name: [(origin.fixed(name), value) for origin, value in chain]
        for name, chain in chains_of(config).items()
        if name in values
    }
    state = config._state or State()  # pyright: ignore[reportPrivateUsage]
    dropped = tuple(
        (name, value, origin.fixed(name), why) for name, value, origin, why in state.dropped
    )
    placed = state.placed and [(origin.fixed("type"), tag) for origin, tag in state.placed]
    return state.frozen, values, chains, dropped, state.cautions, placed


def _same(section: Any) -> Any:
    return section


def unpack(config: Node, packed: Packed) -> None:
    """Fill a new instance with what `pack` gave."""
    frozen, values, chains, dropped, cautions, placed = packed
    fields = type(config).__setpoint__.fields
    object.__setattr__(config, "_state", None)
    for name, value in values.items():
        if isinstance(value, tuple | list | dict) and not frozen:
            value = fields[name].type.replace_sections(value, _same, False)
        object.__setattr__(config, name, value)
    state = state_of(config)
    for name, chain in chains.items():
        state.layers.extend((origin, {name: value}) for origin, value in chain)
    state.frozen, state.dropped, state.cautions = frozen, tuple(dropped), cautions
    state.placed = placed


def frozen_value(value: Any) -> Any:
    """The immutable form of a field's value; sections inside stay the same objects."""
    if isinstance(value, Node | FrozenList | FrozenDict):
        return value
    if isinstance(value, Free):
        return value if value.is_frozen() else value.copy(frozen=True)
    if isinstance(value, CheckedList):
        return FrozenList(_frozen_items(value), title_of(value))
    if isinstance(value, CheckedDict):
        items = {key: frozen_value(item) for key, item in value.items()}
        return FrozenDict(items, title_of(value))
    if isinstance(value, tuple):
        return tuple(_frozen_items(cast(tuple[Any, ...], value)))
    return value


def _frozen_items(items: Iterable[Any]) -> list[Any]:
    return [item if item.__class__ in PLAIN else frozen_value(item) for item in items]


def one_layer(one: Origin, other: Origin) -> bool:
    """Whether two origins are of one layer, so that neither is later than the other."""
    if isinstance(one, Recorded) or isinstance(other, Recorded):
        return isinstance(one, Recorded) and isinstance(other, Recorded)
    if one.layer in MANY_ORIGINS:
        return MANY_ORIGINS[one.layer] == MANY_ORIGINS.get(other.layer)
    return one.layer == other.layer and one.label == other.label


def successor(cls: type[C], history: Sequence[Node], moved: Node | None) -> C:
    """A section of a variant, with the values that layers gave to it or to another one before.

    It begins as the variant last stood there. What was given to other variants since counts where
    it fits; what it cannot take is remembered as dropped.

    Arguments:
        history: what stood there, as `stood` gives it.
        moved: the last of these, if it still stands there, whose inner sections move on.
    """
    classes = [type(section).__setpoint__.cls for section in history]
    start = classes.index(cls) + 1 if cls in classes else 0
    new = cast(C, draft_of(history[start - 1])) if start else cls()
    for old in history[start:]:
        _hand_over(old, new, old is moved)
    return new


def _hand_over(old: Node, new: Node, moved: bool) -> None:
    """Carry the values that were given over to another variant, where it takes them."""
    known, state = type(new).__setpoint__, state_of(new)
    chains, kept = chains_of(old), dict[str, Any]()
    dropped = {name: (name, *rest) for name, *rest in state.dropped}
    for name in touched(old):
        chain = chains.get(name, [])
        value: Any = getattr(old, name)
        given = bool(chain) and chain[-1][0].layer != DEFAULT
        if not given and not is_changed(value, given=True):
            continue
        origin = chain[-1][0] if chain else UNTOUCHED
        info = known.fields.get(name)
        reason = f"type = {known.tag} has no such field"
        try:
            if info is not None:
                stored = info.read(value, origin)
                kept[name] = (
                    stored if moved else replace_in_item(info.type, stored, draft_of, False)
                )
                dropped.pop(name, None)
                continue
        except Invalid as error:
            reason = f"type = {known.tag}: {name} {error.message}"
        dropped[name] = (name, value, origin, reason)
    state.dropped = cast(Dropped, tuple(dropped.values()))
    if kept:
        vars(new).update(kept)
        state.layers = [*_layers_with(new, known.fields.keys() - kept), *_layers_with(old, kept)]


def _layers_with(section: Node, names: Collection[str]) -> Iterator[Layer]:
    """The layers of a section, of which only some fields count."""
    for origin, given in layers_of(section):
        found = {name: value for name, value in given.items() if name in names}
        if found:
            yield origin, found


def is_changed(value: object, given: bool = False) -> bool:
    """Whether something was set inside a value that itself stands at its default.

    Arguments:
        given: whether what the factory of a default has set does not count.

    Returns:
        True for a section, or a free area, in which a field was set, also as an item of a list or
        mapping; and for a list or mapping that was changed in place.
    """
    if isinstance(value, Node):
        return any(
            any(not given or origin.layer != DEFAULT for origin, _ in chain_of(value, name))
            or is_changed(value_or_missing(value, name), given)
            for name in touched(value)
        )
    if isinstance(value, Free):
        return any(True for _ in value.items())
    if isinstance(value, tuple | list | dict):
        held = cast(object, value)
        return last_change(held) is not None or any(
            is_changed(item, given) for _, item in children(held)
        )
    return False
