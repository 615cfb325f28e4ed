"""The entries of a mapping of plain values, each with the layers that gave it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, cast

from .base import Chain, Config
from .data import same
from .field import FieldInfo
from .literal import LiteralText, escaped
from .origin import Path
from .reference import Reference
from .sharing import item_at
from .walk import Leaf


def entries_of(config: Config, leaf: Leaf) -> list[Leaf]:
    """Each entry of a mapping as a leaf of its own.

    A layer counts for an entry that it brings or changes; the chain of the mapping holds the whole
    value of each layer, in old records too.

    Arguments:
        config: the root.
        leaf: any leaf of it.

    Returns:
        the entries, in the mapping's order; none for what is no mapping, or that no layer touched.
    """
    held = _mapping(leaf.value)
    if not (held and leaf.chain):
        return []
    info = field_at(config, leaf.path)
    usual: object = info.initial() if info is not None else None
    before = _mapping(layer_text(usual))
    chains: dict[str, Chain] = {}
    for origin, value in leaf.chain:
        now = _mapping(layer_text(value))
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


def field_at(root: Config, path: Path) -> FieldInfo | None:
    """The field that a path leads to.

    Arguments:
        root: the root.
        path: of a leaf.

    Returns:
        the field; None for an item of a list or mapping, and in the user area.
    """
    node: Any = root
    for part in path[:-1]:
        node = getattr(node, str(part)) if isinstance(node, Config) else item_at(node, part)
    return type(node).__setpoint__.fields.get(str(path[-1])) if isinstance(node, Config) else None


def layer_text(value: object) -> object:
    """The value of a layer as records have it.

    Arguments:
        value: as a chain holds it.

    Returns:
        plain data; of a section its type.
    """
    if isinstance(value, Config):
        return type(value).__setpoint__.tag or type(value).__name__
    dump = getattr(value, "dump", None)
    if callable(dump):
        return dump()
    if isinstance(value, tuple | list):
        return [layer_text(item) for item in cast(Sequence[object], value)]
    if isinstance(value, dict):
        return {key: layer_text(item) for key, item in cast(dict[str, object], value).items()}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, LiteralText):
        return escaped(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Reference):
        return value.text
    return escaped(getattr(value, "pattern", None) or str(value))
