"""One hash of all identity fields."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, cast

from ..draft.argument_errors import need_config
from ..draft.walk import Leaf, leaves
from ..schema.bounds import IDENTITY
from ..values.node import Node, is_frozen
from ..words.errors import SetpointError
from ..words.shown import INFINITIES, json_value

SHORT = 8


def identity_leaves(config: Node) -> list[Leaf]:
    """The values that the fingerprint is taken of."""
    return [leaf for leaf in leaves(config) if leaf.role is IDENTITY]


def canonical(config: Node) -> str:
    """The text that the fingerprint is taken of.

    Returns:
        JSON of a mapping from dotted path to value: sorted keys, no spaces, ASCII only, floats
        in their shortest exact form. Free of the order of fields, of the machine and of Python's
        version.
    """
    return canonical_json({leaf.key: json_value(leaf.value) for leaf in identity_leaves(config)})


def _float(value: float) -> str:
    if value in INFINITIES:
        return '"inf"' if value > 0 else '"-inf"'
    return float.__repr__(value)


# How numbers are written, truth values first, which Python takes for numbers as well.
_WRITERS: dict[type, Callable[[Any], str]] = {
    bool: lambda value: "true" if value else "false",
    int: int.__repr__,
    float: _float,
}


def canonical_json(values: Mapping[str, object]) -> str:
    """The canonical form of values by dotted path."""
    json = sys.modules.get("json")
    if json is not None:  # imported already
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
    if isinstance(value, (list, tuple)):
        return f"[{','.join([_encoded(each, quote) for each in cast(list[Any], value)])}]"
    if value is None:
        return "null"
    if isinstance(value, str):
        return quote(value)
    for kind, write in _WRITERS.items():
        if isinstance(value, kind):
            return write(value)
    pairs = sorted(cast(Mapping[str, Any], value).items())
    return "{" + ",".join(f"{quote(key)}:{_encoded(each, quote)}" for key, each in pairs) + "}"


def fingerprint(config: Node) -> str:
    """SHA-256 over the canonical form.

    Returns:
        64 hexadecimal digits; names of runs use the first eight.

    Raises:
        SetpointError: for a draft, whose values are not determined yet.
    """
    need_config(config, "fingerprint")
    if not is_frozen(config):
        raise SetpointError("only a resolved configuration has a fingerprint; resolve the draft")
    return sha256(canonical(config).encode("ascii"))


def sha256(data: bytes) -> str:
    """The digest by OpenSSL where that is loaded, else by CPython's own code.

    Loading OpenSSL, as `hashlib` does, costs a tenth of a whole `setpoint check`.
    """
    hashlib = sys.modules.get("hashlib")
    if hashlib is not None:
        return hashlib.sha256(data).hexdigest()
    try:
        module: Any = import_module("_sha2" if sys.version_info >= (3, 12) else "_sha256")
    except ImportError:
        module = import_module("hashlib")
    return module.sha256(data).hexdigest()
