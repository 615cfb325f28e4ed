"""Names of points: short, safe in file names, and independent of other points."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

from setpoint.config import PlainScalar, guess, parsed
from setpoint.sweep_space.setting import Point, plain_value

LONGEST = 120  # characters of a name; file systems take 255 bytes
LONGEST_VALUE = 40
SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
NOTHING = "base"
"""The name of the point of a sweep that has no axes."""


def labels(paths: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """The shortest endings of paths that tell them apart.

    Returns:
        a label for each path: `lr` for `optimizer.lr`, unless another axis ends in `lr` as well.
    """
    every = list(dict.fromkeys(paths))
    return {path: _label(path, every) for path in every}


def _label(path: tuple[str, ...], every: list[tuple[str, ...]]) -> str:
    for length in range(1, len(path) + 1):
        ending = path[-length:]
        # An index alone says nothing.
        if ending[0].isdecimal():
            continue
        if sum(other[-length:] == ending for other in every) == 1:
            return _safe(".".join(ending))
    return _safe(".".join(path))


def name_of(point: Point, short: Mapping[tuple[str, ...], str]) -> str:
    """The name of a point; equal for equal values, different for different ones.

    Returns:
        for instance `lr=3e-4,seed=1`; one that would be too long ends in a hash.
    """
    whole = ",".join(f"{short[item.path]}={value_text(item.value)}" for item in point)
    if len(whole) <= LONGEST:
        return whole or NOTHING
    return f"{whole[: LONGEST - 9].rstrip('=,.')}~{_digest(whole)}"


def value_text(value: object) -> str:
    """A value in signs that are safe in a file name and do not separate.

    Returns:
        a number, word or list as people write it; else what is left of it and a hash.
    """
    if isinstance(value, PlainScalar) and value.startswith(("[", "{")):
        value = parsed(value)
    plain: Any = plain_value(value)
    text = _plain_text(plain)
    if text[:1].isdecimal() and "_" not in text:
        # `10 steps` reads well as `10_steps`; what has such a sign already gets a hash.
        text = text.replace(" ", "_")
    if (
        _is_exact(value, plain)
        and 0 < len(text) <= LONGEST_VALUE
        and all(sign in SAFE or sign == "+" for sign in text)
    ):
        return text
    return f"{_safe(text)[:LONGEST_VALUE].strip('_')}~{_digest(json.dumps(plain, sort_keys=True))}"


def _plain_text(plain: Any) -> str:
    if isinstance(plain, dict):
        entries = cast(dict[str, Any], plain).items()
        words = [
            _plain_text(v) if key == "type" else f"{key}_{_plain_text(v)}" for key, v in entries
        ]
        return "_".join(words)
    if isinstance(plain, list):
        items = [_plain_text(item) for item in cast(list[Any], plain)]
        return "+".join(items) if len(items) > 1 else "+" + "".join(items)
    if plain is None or isinstance(plain, bool):
        return {None: "null", True: "true", False: "false"}[plain]
    return number_text(plain) if isinstance(plain, float) else str(plain)


def number_text(number: float) -> str:
    """A number in the shorter of its two notations.

    Returns:
        for instance `0.1`, `3e-4`, `1e6`.
    """
    plain = repr(number)
    if "e" not in plain:
        exact = next((d for d in range(17) if float(f"{number:.{d}e}") == number), 17)
        digits, _, exponent = f"{number:.{exact}e}".partition("e")
        other = f"{digits}e{int(exponent)}"
        return other if len(other) < len(plain) else plain
    digits, _, exponent = plain.partition("e")
    return f"{digits}e{int(exponent)}"


def _is_exact(value: object, plain: Any) -> bool:
    """True if no other kind of value has the same text."""
    if isinstance(plain, dict):
        return False
    if isinstance(plain, list):
        items = cast(list[Any], plain)
        return all(not isinstance(item, dict | list) and _is_exact(item, item) for item in items)
    if isinstance(plain, str):
        quoted = not isinstance(value, PlainScalar)
        # In a list, an empty text cannot be seen.
        if not plain or (plain[:1].isdecimal() and "_" in plain):
            return False
        reads_otherwise = quoted and not isinstance(guess(PlainScalar(plain)), str)
        return "+" not in plain and not reads_otherwise
    return True


def _safe(text: str) -> str:
    return "".join(sign if sign in SAFE else "_" for sign in text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
