"""From configs to plain data: what files, records and trackers hold."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any, cast

from .base import Config, chain_of, value_or_missing
from .field import MISSING
from .origin import DERIVED
from .reference import Reference
from .types.containers import OptionalType, TupleType

if TYPE_CHECKING:
    from .types.base import FieldType


def to_plain(config: Config) -> dict[str, Any]:
    """A config as nested dicts and lists, complete, with `type` first in variants.

    Arguments:
        config: a draft or a resolved config; fields without a value yet are left out.

    Returns:
        plain data that reads back as an equal config.
    """
    result: dict[str, Any] = {}
    tag = type(config).__setpoint__.tag
    if tag is not None:
        result["type"] = tag
    for name, info in type(config).__setpoint__.fields.items():
        value = value_or_missing(config, name)
        if value is not MISSING:
            result[name] = value.text if isinstance(value, Reference) else info.type.dump(value)
    return result


def to_minimal(config: Config, default: Config | None = None) -> dict[str, Any]:
    """Only what differs from the defaults.

    Derived values are left out: they follow from the others.

    Arguments:
        config: a draft or a resolved config.
        default: what an untouched config of this place would be.

    Returns:
        plain data; composing it over the defaults gives an equal config.
    """
    result: dict[str, Any] = {}
    cls = type(config)
    same = default if type(default) is cls else None
    if cls.__setpoint__.tag is not None and same is None:
        result["type"] = cls.__setpoint__.tag
    for name, info in cls.__setpoint__.fields.items():
        value = value_or_missing(config, name)
        chain = chain_of(config, name)
        if value is MISSING:
            continue
        if chain and chain[-1][0].layer == DERIVED:
            continue
        standard = info.initial() if same is None else value_or_missing(same, name)
        if isinstance(value, Config):
            inner = to_minimal(value, standard if isinstance(standard, Config) else None)
            if inner or not isinstance(standard, Config):
                result[name] = inner
        elif isinstance(value, Reference):
            result[name] = value.text
        else:
            reduced = minimal_items(info.type, value)
            if standard is MISSING or reduced != minimal_items(info.type, standard):
                result[name] = reduced
    return result


def minimal_items(kind: FieldType, value: Any) -> Any:
    """A value with the sections in it reduced to what differs from their defaults.

    Arguments:
        kind: the value's type.
        value: a stored value.

    Returns:
        plain data.
    """
    if isinstance(value, Config):
        return to_minimal(value)
    inner = kind.parts()
    if value is None or not kind.nested or not inner:
        return kind.dump(value)
    if isinstance(kind, OptionalType):
        return minimal_items(kind.inner, value)
    if isinstance(value, dict):
        items = cast(dict[str, Any], value).items()
        return {key: minimal_items(inner[0], item) for key, item in items}
    kinds = inner if isinstance(kind, TupleType) else repeat(inner[0])
    return [minimal_items(part, item) for part, item in zip(kinds, value, strict=False)]
