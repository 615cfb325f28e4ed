"""One hash of everything that is part of what is learned."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, cast

from ..draft.argument_errors import need_config
from ..draft.walk import Leaf, leaves
from ..schema.bounds import IDENTITY
from ..schema.class_info import newer, renamed
from ..schema.field import FieldInfo
from ..values.node import Node, is_frozen
from ..words.errors import SetpointError
from ..words.names import Path, dotted
from ..words.shown import json_value, same

SHORT = 8


def identity_leaves(config: Node) -> list[Leaf]:
    """The values that the fingerprint is taken of.

    Returns:
        the leaves whose role, with the roles of the fields above them, is identity; without those
        of fields that were added later and hold what runs had before, so that older runs keep
        their fingerprint.
    """
    return [
        leaf for leaf in leaves(config) if leaf.role is IDENTITY and not as_before(config, leaf)
    ]


def as_before(config: Node, leaf: Leaf) -> bool:
    """Whether a field was added later and holds what every run had before."""
    # The tag of a section speaks for the field that holds the section.
    path = leaf.path[:-1] if leaf.path[-1] == "type" else leaf.path
    if not path or path[-1] not in newer:
        return False
    info = _declared(config, path)
    return info is not None and same(json_value(leaf.value), info.before)


def formerly(config: Node, leaf: Leaf) -> dict[str, object] | None:
    """What stands for a leaf in the canonical form, where that is not its path and value.

    Returns:
        dotted paths and plain values; None where the leaf stands for itself.
    """
    if not leaf.path or leaf.path[-1] not in renamed:
        return None
    info = _declared(config, leaf.path)
    if info is None or info.formerly is None:
        return None
    old = info.formerly(json_value(leaf.value))
    return None if old is None else {dotted((*leaf.path[:-1], k)): v for k, v in old.items()}


def _declared(config: Node, path: Path) -> FieldInfo | None:
    node: Any = config
    for part in path[:-1]:
        node = getattr(node, str(part)) if isinstance(node, Node) else node[part]
    return type(node).__setpoint__.fields.get(str(path[-1])) if isinstance(node, Node) else None


def canonical(config: Node) -> str:
    """The text that the fingerprint is taken of.

    Returns:
        JSON of a mapping from dotted path to value: sorted keys, no spaces, ASCII only, floats
        in their shortest exact form. Free of the order of fields, of the machine and of Python's
        version.
    """
    values: dict[str, object] = {}
    for leaf in identity_leaves(config):
        values.update(formerly(config, leaf) or {leaf.key: json_value(leaf.value)})
    return canonical_json(values)


def canonical_json(values: Mapping[str, object]) -> str:
    """The canonical form of values by dotted path.

    Returns:
        see `canonical`.
    """
    json = sys.modules.get("json")
    if json is not None:  # somebody has paid for it already
        return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return encoded(values)


def _quote() -> Callable[[str], str]:
    """How a text is written: the function that `json` itself uses.

    Importing `json` for it would bring its reader, which costs more than the whole fingerprint.
    """
    try:
        return import_module("_json").encode_basestring_ascii
    except ImportError:
        return import_module("json.encoder").encode_basestring_ascii


def encoded(value: object) -> str:
    """Plain data as `json.dumps` writes it with sorted keys, no spaces and ASCII only."""
    return _encoded(value, _quote())


def _encoded(value: Any, quote: Callable[[str], str]) -> str:
    if isinstance(value, str):
        return quote(value)
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value)
    if isinstance(value, Mapping):
        pairs = sorted(cast(Mapping[str, Any], value).items())
        return "{" + ",".join(f"{quote(key)}:{_encoded(each, quote)}" for key, each in pairs) + "}"
    return "[" + ",".join(_encoded(each, quote) for each in value) + "]"


def fingerprint(config: Node) -> str:
    """SHA-256 over the canonical form.

    Returns:
        64 hexadecimal digits; names of runs use the first eight.

    Raises:
        SetpointError: for a draft, whose values are not determined yet.
    """
    if not isinstance(config, Node):  # pyright: ignore[reportUnnecessaryIsInstance]
        need_config(config, "fingerprint")
    if not is_frozen(config):
        raise SetpointError("only a resolved configuration has a fingerprint; resolve the draft")
    return sha256(canonical(config).encode("ascii"))


def sha256(data: bytes) -> str:
    """The digest by CPython's own code, or by OpenSSL where that is left out.

    Loading OpenSSL, as `hashlib` does, costs a tenth of a whole `setpoint check`.
    """
    try:
        module: Any = import_module("_sha2" if sys.version_info >= (3, 12) else "_sha256")
    except ImportError:
        module = import_module("hashlib")
    return module.sha256(data).hexdigest()
