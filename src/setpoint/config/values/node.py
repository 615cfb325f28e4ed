"""What a section remembers beside its values: origins, what is wrong, whether it is resolved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from ..words.errors import Caution, UnresolvedError
from ..words.names import Path
from ..words.shown import MISSING
from .origin import Origin

Chain = list[tuple[Origin, object]]


NO_ORIGINS: Mapping[str, Chain] = MappingProxyType({})


class State:
    """What an instance remembers beside its values; made when the first value is set."""

    __slots__ = (
        "below",
        "cautions",
        "copies",
        "dropped",
        "frozen",
        "invalid",
        "origins",
        "rows",
        "shared",
        "source",
        "ties",
        "whole",
    )

    def __init__(self) -> None:
        self.origins: dict[str, Chain] = {}
        self.frozen = False
        # Fields whose value is known to be wrong, so that nothing may be concluded from it.
        self.invalid: set[str] = set()
        # Values that a later layer has overtaken: (field, value, origin, reason).
        self.dropped: list[tuple[str, object, Origin, str]] = []
        # What resolve found legal but suspicious, on the root.
        self.cautions: tuple[Caution, ...] = ()
        # Of a resolved section: whether nothing in it follows from values outside of it.
        self.whole = False
        # Of a resolved section: whether some section of its tree stands in several places.
        self.ties = False
        # Of such a section: those below it with their paths, once somebody has asked for them.
        self.below: list[tuple[Path, Node]] | None = None
        # Of such a section: its part of the canonical form, once a fingerprint has been taken.
        self.rows: list[str] | None = None
        # Of a draft of a resolved section: that section; the fields that nobody has looked into
        # yet and that are still its own; and the copies made so far. See `copying.draft_of`.
        self.source: Node | None = None
        self.shared: dict[str, Any] | None = None
        self.copies: Any = None


class Node:
    """A section, as far as the lower floors know it: it has fields and remembers a state.

    `Config` derives from it. What lies below `Config` asks `isinstance(value, Node)`, and takes
    config classes for `type[Node]`.
    """

    __slots__ = ("_state",)
    __setpoint__: ClassVar[Any]
    _state: State | None

    def __setpoint_draft__(self) -> Any:
        """A draft of its own with the same values; see `draft_of`."""
        raise TypeError(f"{type(self).__name__} is no config")

    def store(self, name: str, value: object, origin: Origin) -> None:
        """Put a checked value into a field and record its origin.

        Arguments:
            value: a value as `FieldInfo.read` returns it.
        """
        object.__setattr__(self, name, value)
        state = self._state
        if state is None:
            state = State()
            object.__setattr__(self, "_state", state)
        elif state.shared:
            state.shared.pop(name, None)
        chain = state.origins.get(name)
        if chain is None:
            state.origins[name] = [(origin, value)]
        else:
            chain.append((origin, value))


def is_frozen(config: Node) -> bool:
    """Whether a config has been resolved and so cannot change."""
    state = config._state  # pyright: ignore[reportPrivateUsage]
    return state is not None and state.frozen


def state_of(config: Node) -> State:
    """The memory of an instance, made if it has none.

    Returns:
        its state; changing it changes the instance.
    """
    state = config._state  # pyright: ignore[reportPrivateUsage]
    if state is None:
        state = State()
        object.__setattr__(config, "_state", state)
    return state


def mark_invalid(config: Node, name: str) -> None:
    """Make a field unreadable whose value is known to be wrong and has been reported.

    Derivations and checks that read it then end without a conclusion of their own.
    """
    state = state_of(config)
    if state.shared:
        state.shared.pop(name, None)
    if name in touched(config):
        object.__delattr__(config, name)
    state.invalid.add(name)


def is_invalid(config: Node, name: str) -> bool:
    """Whether a field's value is known to be wrong, so that nothing may be concluded from it."""
    state = config._state  # pyright: ignore[reportPrivateUsage]
    return state is not None and name in state.invalid


def chain_of(config: Node, name: str) -> Chain:
    """All layers that touched a field, first to last; empty while it has its default.

    Returns:
        pairs of origin and value; the last one won.
    """
    state = config._state  # pyright: ignore[reportPrivateUsage]
    return state.origins.get(name, []) if state else []


def origins_of(config: Node) -> Mapping[str, Chain]:
    """The layers that touched each field of a section; fields that none has touched are not in it.

    Returns:
        a chain, as `chain_of` gives it, for each field that was set or computed.
    """
    state = config._state  # pyright: ignore[reportPrivateUsage]
    return state.origins if state else NO_ORIGINS


def value_or_missing(config: Any, name: str) -> Any:
    """A field's value, or MISSING where a derived or required field is still unset."""
    try:
        return getattr(config, name)
    except UnresolvedError:
        return MISSING


def touched(config: Node) -> Iterator[str]:
    """The fields that hold a value of their own: set, or sections that were looked into."""
    state = config._state  # pyright: ignore[reportPrivateUsage]
    frozen = state is not None and state.frozen
    origins = state.origins if state else {}
    shared = state.shared or () if state else ()
    for name, info in type(config).__setpoint__.fields.items():
        if info.constant and name not in origins and not frozen:
            continue  # a default that all instances share is not put into them before the freeze
        if name not in shared:
            try:
                object.__getattribute__(config, name)
            except AttributeError:
                continue
        yield name
