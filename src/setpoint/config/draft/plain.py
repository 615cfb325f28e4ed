"""From configs to plain data: what files, records and trackers hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from ..types.base import PLAIN
from ..types.containers import REMOVE
from ..values.node import Node, chain_of, value_or_missing
from ..values.origin import DERIVED, REFERENCE
from ..values.reference import Reference, reference_to
from ..words.names import Path
from ..words.plain_data import MISSING
from ..words.plain_data import same as same_value
from .walk import sections

if TYPE_CHECKING:
    from ..schema.field import FieldInfo
    from ..types.base import FieldType

Places = dict[int, Path]
"""The first place of each section, by identity: at any other a reference to it is written."""


def first_places(config: Node, path: Path = ()) -> Places:
    """The first place of each section of a tree."""
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
        config: a draft or a resolved config; fields without a value yet are left out.
        replace_mappings: whether mappings will replace those that are there, as in a record; a
            file adds to the ones that are there by default, so that it has to take out what is not
            in them.

    Returns:
        plain data that reads back as an equal config; a section that stands in several places is
        written at the first, and as a reference to it at the others.
    """
    known = first_places(config, path) if places is None else places
    same = default if type(default) is type(config) else None
    cls = type(config).__setpoint__
    result: dict[str, Any] = {} if cls.tag is None else {"type": cls.tag}

    def inside(section: Node, at: Path) -> dict[str, Any]:
        return to_plain(section, at, known, None, replace_mappings)

    for name, info in cls.fields.items():
        value, here = value_or_missing(config, name), (*path, name)
        if value is MISSING:
            continue
        if isinstance(value, Node) and not replace_mappings and known.get(id(value), here) == here:
            result[name] = to_plain(value, here, known, _usual(info, same))
            continue
        result[name] = plain_items(info.type, value, here, known, inside)
        if isinstance(value, dict) and not replace_mappings:
            gone = _removed(cast(dict[str, Any], value), _usual(info, same))
            result[name] = {**gone, **result[name]}
    return result


def _usual(info: FieldInfo, same: Node | None) -> Any:
    """The default of a field in its place."""
    return info.initial() if same is None else value_or_missing(same, info.name)


def _removed(value: dict[str, Any], usual: Any) -> dict[str, list[str]]:
    """The key that takes out default keys of a mapping, since a layer adds to it."""
    if not isinstance(usual, dict):
        return {}
    gone = [key for key in cast(dict[str, Any], usual) if key not in value]
    return {REMOVE: gone} if gone else {}


def plain_items(
    kind: FieldType, value: Any, path: Path, places: Places, plain: Callable[[Node, Path], Any]
) -> Any:
    """A value in plain data, with the sections inside as a function makes them.

    A section that has stood before is written as a reference to its first place.
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
    """Only what differs from the defaults, with references as they were given.

    Derived values are left out: they follow from the others.

    Arguments:
        path, places: as for `to_plain`.

    Returns:
        plain data; composing it over the defaults gives an equal config.
    """
    places = first_places(config, path) if places is None else places
    result: dict[str, Any] = {}
    cls = type(config)
    same = default if type(default) is cls else None
    twin = None
    if default is not None and hasattr(cls, "__setpoint_open__"):
        same, twin = _beside(config, default)
    if cls.__setpoint__.tag is not None and same is None:
        result["type"] = cls.__setpoint__.tag
    for name, info in cls.__setpoint__.fields.items():
        value = given(config, name)
        if value is MISSING:
            continue
        here = (*path, name)
        if same is None and (twin is None or info.required):
            standard = _usual(info, None)
        else:
            standard = value_or_missing(same or twin or config, name)
        if isinstance(value, Node):
            if places.get(id(value), here) != here:
                result[name] = reference_to(places[id(value)])
                continue
            beside = standard if isinstance(standard, Node) else None
            inner = to_minimal(value, beside, here, places)
            if inner or beside is None:
                result[name] = inner
        elif isinstance(value, Reference):
            result[name] = value.text
        else:
            reduced = minimal_items(info.type, value, here, places)
            usual = None if standard is MISSING else minimal_items(info.type, standard, here, {})
            if standard is MISSING or not same_value(reduced, usual):
                if isinstance(value, dict):
                    reduced = {**_removed(cast(dict[str, Any], value), standard), **reduced}
                result[name] = reduced
    return result


def _beside(config: Node, default: Node) -> tuple[Node | None, Node | None]:
    """The default for an imported component as a whole, or for its typed fields only.

    To name a target is to start afresh with its arguments, so that arguments equal to the default's
    are left out only where nothing takes arguments away.
    """
    if type(default).__setpoint__.cls is not type(config).__setpoint__.cls:
        return None, None
    whole = type(default) is type(config) and given(default, "target") == given(config, "target")
    return (default, None) if whole else (None, default)


def given(config: Node, name: str) -> Any:
    """The value that a field was given, or the reference that it was computed from.

    Returns:
        a stored value; MISSING where nothing was given, since it is derived or required.
    """
    chain = chain_of(config, name)
    layer = chain[-1][0].layer if chain else None
    if layer == DERIVED:
        return MISSING
    return chain[-2][1] if layer == REFERENCE else value_or_missing(config, name)


def minimal_items(
    kind: FieldType, value: Any, path: Path = (), places: Places | None = None
) -> Any:
    """A value with the sections in it reduced to what differs from their defaults.

    Arguments:
        path, places: as for `to_plain`.
    """
    known = {} if places is None else places
    return plain_items(
        kind, value, path, known, lambda section, at: to_minimal(section, None, at, known)
    )
