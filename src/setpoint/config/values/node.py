"""State of a section other than its values: origins, invalid fields, the resolved flag."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any, ClassVar

from ..words.errors import Caution, UnresolvedError
from ..words.plain_data import MISSING, children, item_at, nested
from .containers import Free, last_change
from .origin import DEFAULT, UNTOUCHED, Origin

Chain = list[tuple[Origin, Any]]
# One layer as seen by a section: its origin, and the values it set.
Layer = tuple[Origin, dict[str, Any]]


class State:
    """State of an instance other than its values."""

    frozen = False
    # Fields with an invalid value, from which nothing may be concluded.
    invalid: frozenset[str] = frozenset()
    # Values replaced by later layers: (field, value, origin, reason).
    dropped: tuple[tuple[str, Any, Origin, str], ...] = ()
    # For an item of a list or mapping that a later layer changed while keeping the item: the layers
    # that set the item, with its value in each.
    placed: Chain | None = None
    # For an item of a list or mapping: the item of another variant that it replaced.
    replaced: Node | None = None
    # Of a resolved root, once computed.
    fingerprint: str | None = None
    # The cautions of resolve, on the root; None elsewhere.
    cautions: tuple[Caution, ...] | None = None

    def __init__(self, layers: Iterable[Layer] = ()) -> None:
        # The layers that set a field of this section, first to last. Layers are replaced, never
        # changed, since copies of a section share them.
        self.layers: list[Layer] = [*layers]


class Node:
    """Base of `Config` for the lower packages: fields and a state.

    `Config` derives from it. Packages below `Config` test `isinstance(value, Node)` and use
    `type[Node]` for config classes.
    """

    __slots__ = ("_state",)
    __setpoint__: ClassVar[Any]
    _state: State

    def __setpoint_draft__(self) -> Any:
        """Return a draft with the same values; see `draft_of`."""
        raise TypeError(f"{type(self).__name__} is not a config")

    def store(self, name: str, value: object, origin: Origin) -> None:
        """Store a value read by `FieldInfo.read` in a field, and record its origin."""
        state = state_of(self)
        before = vars(self).get(name)
        known = any(name in given for _, given in state.layers)
        if not known and isinstance(before, Node) and before is not value and is_changed(before):
            # A changed default that no layer contains yet; see `history_of`.
            state.layers.insert(0, (UNTOUCHED, {name: before}))
        holder = bool(before) and isinstance(before, tuple | list | dict)
        if holder and type(self).__setpoint__.fields[name].type.nested:
            _keep_places(before, chain_of(self, name))
        object.__setattr__(self, name, value)
        layers = state.layers
        if layers and layers[-1][0] is origin and name not in layers[-1][1]:
            layers[-1] = (origin, {**layers[-1][1], name: value})
        else:
            layers.append((origin, {name: value}))


def is_changed(value: object) -> bool:
    """True if a layer above the defaults has set something inside a value.

    That is a field of a section or a key of a free area, at any depth, including items of lists and
    mappings; or a change in place to a list or mapping.
    """
    if isinstance(value, Node):
        return any(origin.layer != DEFAULT for origin, _ in state_of(value).layers) or any(
            map(is_changed, vars(value).values())
        )
    if isinstance(value, Free):
        return len(value) > 0
    return last_change(value) is not None or any(is_changed(item) for _, item in children(value))


def history_of(*values: object) -> list[Node]:
    """The previous sections at one path, first to last; each variant in its last state.

    Arguments:
        values: the values set by the layers, in order; only sections are used.
    """
    last: dict[type[Node], Node] = {}
    for value in values:
        if isinstance(value, Node):
            for section in (*history_of(state_of(value).replaced), value):
                cls = type(section).__setpoint__.cls
                last.pop(cls, None)
                last[cls] = section
    return list(last.values())


def _keep_places(value: Any, chain: Chain) -> None:
    """Set the layers of the sections in a list or mapping."""
    for inside, item in nested(value):
        if isinstance(item, Node) and state_of(item).placed is None:
            items = [(origin, reduce(item_at, inside, container)) for origin, container in chain]
            sections = ((origin, type(part)) for origin, part in items if isinstance(part, Node))
            state_of(item).placed = [(origin, cls.__setpoint__.tag) for origin, cls in sections]


def is_frozen(config: Node) -> bool:
    """True if a config has been resolved and therefore cannot change."""
    return state_of(config).frozen


def state_of(config: Node) -> State:
    """The state of an instance."""
    return config._state  # pyright: ignore[reportPrivateUsage]


def mark_invalid(config: Node, name: str) -> None:
    """Mark a field as invalid, so that reading it is an error.

    Derivations and checks that read it then stop without a result.
    """
    state = state_of(config)
    vars(config).pop(name, None)
    state.invalid |= {name}


def chain_of(config: Node, name: str) -> Chain:
    """All layers that set a field, first to last; empty if it has its default."""
    return [(origin, given[name]) for origin, given in state_of(config).layers if name in given]


def chains_of(config: Node) -> dict[str, Chain]:
    """The layers that set each field of a section, omitting fields that none has set."""
    chains: dict[str, Chain] = {}
    for origin, given in state_of(config).layers:
        for name, value in given.items():
            chains.setdefault(name, []).append((origin, value))
    return chains


def set_chain(config: Node, name: str, chain: Chain) -> None:
    """Replace the layers of a field; its value is unchanged."""
    state = state_of(config)
    state.layers = [
        (origin, {key: value for key, value in given.items() if key != name})
        if name in given
        else (origin, given)
        for origin, given in state.layers
    ]
    state.layers.extend((origin, {name: value}) for origin, value in chain)


def replace_given(layers: list[Layer], values: Mapping[str, object]) -> None:
    """Replace the last values of fields with equal objects."""
    rest = set(values)
    for index in range(len(layers) - 1, -1, -1):
        origin, given = layers[index]
        names = rest & given.keys()
        if names:
            layers[index] = (origin, {**given, **{name: values[name] for name in names}})
            rest -= names
            if not rest:
                return


def value_or_missing(config: Any, name: str) -> Any:
    """A field's value, or MISSING if a derived or required field is still unset."""
    try:
        return getattr(config, name)
    except UnresolvedError:
        return MISSING
