"""Switching a section to another variant: what goes along, and what is left behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from .base import Config, State, chain_of, state_of, touched, value_or_missing
from .errors import Invalid
from .free import Free
from .origin import COMMAND_LINE, DEFAULT, ENVIRONMENT, PROGRAM, SWEEP, Origin, Recorded
from .types.held import last_change
from .walk import UNTOUCHED

# All flags are one layer, as are all variables; each file is a layer of its own. The values of a
# point of a sweep stand where the flags of its own command line would.
MANY_ORIGINS = {
    ENVIRONMENT: ENVIRONMENT,
    COMMAND_LINE: COMMAND_LINE,
    SWEEP: COMMAND_LINE,
    PROGRAM: PROGRAM,
}


def one_layer(one: Origin, other: Origin) -> bool:
    """Whether two origins are of one layer, so that neither is later than the other.

    Arguments:
        one, other: the origins.

    Returns:
        True for two flags, for two places of one file, and for two values of a record.
    """
    if isinstance(one, Recorded) or isinstance(other, Recorded):
        return isinstance(one, Recorded) and isinstance(other, Recorded)
    if one.layer in MANY_ORIGINS:
        return MANY_ORIGINS[one.layer] == MANY_ORIGINS.get(other.layer)
    return one.layer == other.layer and one.label == other.label


def keep_shared(old: Config, new: Config) -> None:
    """Carry the values that were set over to another variant, where it has the same fields.

    Arguments:
        old: the section that is replaced.
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

    Arguments:
        value: a stored value.

    Returns:
        True for a section, or a free area, in which a field was set, also as an item of a list or
        mapping; and for a list or mapping that was changed in place.
    """
    if isinstance(value, Config):
        return any(
            chain_of(value, name) or is_changed(value_or_missing(value, name))
            for name in touched(value)
        )
    if isinstance(value, Free):
        return any(True for _ in value.items())
    if isinstance(value, tuple | list | dict):
        held = cast(Mapping[str, object] | Sequence[object], value)
        items = held.values() if isinstance(held, Mapping) else held
        return last_change(cast(object, value)) is not None or any(map(is_changed, items))
    return False


def dropped_by(section: Config, switch: Origin) -> Iterator[tuple[str, object, Origin]]:
    """The values that were lost although the layer that switched the variant had set them.

    What an earlier layer set was meant for the other variant, and is only named as dropped.

    Arguments:
        section: the fresh section, after `keep_shared`.
        switch: the origin of the switch.

    Returns:
        the field, value and origin of each.
    """
    for name, value, origin, _ in state_of(section).dropped:
        if origin is switch or (switch.layer in MANY_ORIGINS and one_layer(origin, switch)):
            yield name, value, origin
