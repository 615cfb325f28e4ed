"""Copies of configs: drafts to edit, and the tree that resolve works on."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from .base import Chain, Config, State, chain_of, is_frozen, state_of, touched
from .free import Free
from .origin import DERIVED, REFERENCE
from .types.held import CheckedDict, CheckedList, FrozenDict, FrozenList, last_change

C = TypeVar("C", bound=Config)


def draft_of(config: C, memo: dict[int, Config] | None = None) -> C:
    """A mutable copy that shares nothing with the original.

    What was computed at resolve is forgotten, so that it is computed anew; a section that stands
    in two places of the original stands in two places of the copy.

    Arguments:
        config: a draft or a resolved config.
        memo: the copies made so far, by the identity of their originals.

    Returns:
        the draft.
    """
    memo = {} if memo is None else memo
    found: Any = memo.get(id(config))
    if found is not None:
        return found
    cls = type(config)
    copy = cls.__new__(cls)
    object.__setattr__(copy, "_state", None)
    memo[id(config)] = copy
    state: State | None = config._state  # pyright: ignore[reportPrivateUsage]
    if state is not None:
        new = State()
        object.__setattr__(copy, "_state", new)
        new.dropped = list(state.dropped)
    fields = cls.__setpoint__.fields
    for name in touched(config):
        value: Any = getattr(config, name)
        chain = list(chain_of(config, name))
        if chain and chain[-1][0].layer in (DERIVED, REFERENCE):
            chain.pop()
            if not chain:
                continue
            value = chain[-1][1]
        if isinstance(value, Config):
            value = draft_of(value, memo)
        elif isinstance(value, tuple | list | dict | Free):
            changed = last_change(cast(object, value))
            value = fields[name].type.map(value, lambda inner: draft_of(inner, memo), False)
            if changed is not None:
                chain.append((changed, value))
        object.__setattr__(copy, name, value)
        if chain:
            state_of(copy).origins[name] = chain
    return copy


def pack(config: Config) -> tuple[bool, dict[str, Any], dict[str, Chain]]:
    """What another process needs to make an equal config; origins keep their words.

    Arguments:
        config: a draft or a resolved config.

    Returns:
        whether it is frozen, its values, and their origins.
    """
    values = {name: getattr(config, name) for name in touched(config)}
    chains = {
        name: [(origin.fixed(name), value) for origin, value in chain]
        for name in values
        if (chain := chain_of(config, name))
    }
    return is_frozen(config), values, chains


def unpack(config: Config, packed: tuple[bool, dict[str, Any], dict[str, Chain]]) -> None:
    """Fill a new instance with what `pack` gave.

    Arguments:
        config: an instance without any values.
        packed: the result of `pack`.
    """
    frozen, values, chains = packed
    fields = type(config).__setpoint__.fields
    object.__setattr__(config, "_state", None)
    for name, value in values.items():
        if isinstance(value, tuple | list | dict) and not frozen:
            value = fields[name].type.map(value, lambda inner: inner, False)
        object.__setattr__(config, name, value)
    state = state_of(config)
    state.origins.update(chains)
    state.frozen = frozen


def frozen_value(value: Any) -> Any:
    """The immutable form of a field's value; sections inside stay the same objects.

    Arguments:
        value: a stored value.

    Returns:
        the value with lists, mappings and free areas closed.
    """
    if isinstance(value, Free):
        return value.copy(frozen=True)
    if isinstance(value, CheckedList | FrozenList):
        return FrozenList(frozen_value(item) for item in value)
    if isinstance(value, CheckedDict | FrozenDict):
        return FrozenDict({key: frozen_value(item) for key, item in value.items()})
    if isinstance(value, tuple):
        return tuple(frozen_value(item) for item in cast(tuple[Any, ...], value))
    return value
