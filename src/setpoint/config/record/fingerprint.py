"""One hash of all identity fields."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from ..draft.walk import Leaf, leaves, need_config
from ..schema.bounds import IDENTITY
from ..values.node import Node, is_frozen
from ..words.errors import SetpointError
from ..words.plain_data import plain

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
    return canonical_json({leaf.key: plain(leaf.value) for leaf in identity_leaves(config)})


def canonical_json(values: Mapping[str, object]) -> str:
    """The canonical form of values by dotted path."""
    import json  # which a command that takes no fingerprint does not need

    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


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
    """The digest by CPython's own code: `hashlib` loads OpenSSL, which takes longer than `json`."""
    try:
        module: Any = import_module("_sha2" if sys.version_info >= (3, 12) else "_sha256")
    except ImportError:
        module = import_module("hashlib")
    return module.sha256(data).hexdigest()
