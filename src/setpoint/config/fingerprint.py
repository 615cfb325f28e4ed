"""One hash of everything that is part of what is learned."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

from .base import Config, is_frozen
from .errors import SetpointError
from .role import IDENTITY
from .walk import Leaf, leaves

SHORT = 8


def identity_leaves(config: Config) -> list[Leaf]:
    """The values that are part of what is learned.

    Arguments:
        config: a resolved config.

    Returns:
        the leaves whose role, with the roles of the fields above them, is identity.
    """
    return [leaf for leaf in leaves(config) if leaf.role is IDENTITY]


def canonical(config: Config) -> str:
    """The text that the fingerprint is taken of.

    Arguments:
        config: a resolved config.

    Returns:
        JSON of a mapping from dotted path to value: sorted keys, no spaces, ASCII only, floats
        in their shortest exact form. Free of the order of fields, of the machine and of Python's
        version.
    """
    values = {leaf.key: json_value(leaf.value) for leaf in identity_leaves(config)}
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def fingerprint(config: Config) -> str:
    """SHA-256 over the canonical form.

    Arguments:
        config: a resolved config.

    Returns:
        64 hexadecimal digits; names of runs use the first eight.

    Raises:
        SetpointError: for a draft, whose values are not determined yet.
    """
    if not is_frozen(config):
        raise SetpointError("only a resolved configuration has a fingerprint; resolve the draft")
    return _sha256(canonical(config).encode("ascii"))


def _sha256(data: bytes) -> str:
    """The digest by CPython's own code, or by OpenSSL where that is left out.

    Loading OpenSSL, as `hashlib` does, costs a tenth of a whole `setpoint check`.
    """
    try:
        module: Any = import_module("_sha2" if sys.version_info >= (3, 12) else "_sha256")
    except ImportError:
        module = import_module("hashlib")
    return module.sha256(data).hexdigest()


def json_value(value: Any) -> Any:
    """A plain value as JSON can hold it.

    Arguments:
        value: a leaf's value.

    Returns:
        the value, with infinities as the texts that a number's type reads back.
    """
    # JSON has no infinities, and json.dumps would write them as words that no reader takes.
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, list):
        return [json_value(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, dict):
        return {key: json_value(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    return value
