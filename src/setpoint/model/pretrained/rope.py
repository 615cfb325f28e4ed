"""Rotary positions as config.json has them, in the spelling of transformers 4 and of 5.

4: rope_theta and rope_scaling at the top. 5: both in rope_parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from setpoint.config import SetpointError
from setpoint.model.pretrained.document import LARGEST, Document, reasons
from setpoint.model.rope.config import Linear, Llama3, RopeScaling, Yarn

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig

_KEYS = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
    "yarn": (
        "factor",
        "original_max_position_embeddings",
        "beta_fast",
        "beta_slow",
        "attention_factor",
        "mscale",
        "mscale_all_dim",
        "truncate",
    ),
}
"""What each rule reads beside its name and the base."""
BASE = 10_000.0
"""Where a file names none."""


def read_rope(document: Document, length: int) -> dict[str, Any]:
    """The fields for rotary positions that are the same in all layers.

    Returns:
        `rope_base` and `rope_scaling`.
    """
    given = document.number("rope_theta", None)
    older, newer = document.value("rope_scaling"), document.value("rope_parameters")
    name = "rope_scaling" if older else "rope_parameters"
    rules = [(n, v) for n, v in (("rope_scaling", older), ("rope_parameters", newer)) if v]
    found = [read_rules(document, n, v, given or BASE, length) for n, v in rules]
    if len(found) == 2 and found[0] != found[1]:
        document.refuse("rope_scaling", "contradicts rope_parameters")
    rope_base, scaling = found[0] if found else (given or BASE, None)
    if given is not None and given != rope_base:
        document.refuse("rope_theta", f"contradicts the {rope_base:g} of {name}")
    return {"rope_base": rope_base, "rope_scaling": scaling}


def read_rules(
    document: Document, name: str, rules: Any, base: float, length: int
) -> tuple[float, RopeScaling | None]:
    """The base and the scaling of one set of rules."""
    if not isinstance(rules, Mapping):
        document.refuse(name, "must be a mapping")
        return base, None
    given = dict(cast(Mapping[str, Any], rules))
    theta = given.pop("rope_theta", None)
    old_kind = given.pop("type", None)
    kind = given.pop("rope_type", old_kind) or "default"
    given = {key: value for key, value in given.items() if value is not None}
    if given.pop("partial_rotary_factor", 1.0) != 1.0:
        document.refuse(name, "rotates only a part of each head, which is not supported")
    if not isinstance(kind, str) or kind not in _KEYS:
        document.refuse(name, f"the rule {kind!r} is not known here; known: {', '.join(_KEYS)}")
        return base, None
    unknown = [key for key in given if key not in _KEYS[kind]]
    if unknown:
        document.refuse(name, f"the rule {kind!r} has no {', '.join(unknown)}")
        return base, None
    if theta is not None and not _is_number(theta):
        document.refuse(name, "rope_theta must be a number")
        return base, None
    base = base if theta is None else float(theta)
    if kind == "default":
        return base, None
    wrong = [k for k, v in given.items() if k != "truncate" and not _is_number(v)]
    if wrong:
        document.refuse(name, f"the rule {kind!r}: {wrong[0]} must be a number")
        return base, None
    if kind in ("llama3", "yarn"):
        original = given.setdefault("original_max_position_embeddings", length)
        if original < 1:
            document.refuse(name, f"the rule {kind!r}: the original length must be at least 1")
            return base, None
        if kind == "yarn":
            given.setdefault("factor", length / original)
    if "factor" not in given:
        document.refuse(name, f"the rule {kind!r}: it needs a factor")
        return base, None
    try:
        return base, _scaling(kind, given)
    except SetpointError as error:
        document.refuse(name, f"the rule {kind!r}: {reasons(error)}")
        return base, None


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and -LARGEST < cast(float, value) < LARGEST


def _scaling(kind: str, given: Mapping[str, Any]) -> RopeScaling:
    factor = float(given["factor"])
    if kind == "linear":
        return Linear(factor=factor)
    original = int(given["original_max_position_embeddings"])
    if kind == "llama3":
        return Llama3(
            factor=factor,
            low_frequency_factor=float(given.get("low_freq_factor", 1.0)),
            high_frequency_factor=float(given.get("high_freq_factor", 4.0)),
            original_length=original,
        )
    attention = given.get("attention_factor")
    scale, scale_all = given.get("mscale"), given.get("mscale_all_dim")
    if attention is None and scale and scale_all:
        # DeepSeek's form of it.
        attention = _magnitude(factor, scale) / _magnitude(factor, scale_all)
    return Yarn(
        factor=factor,
        original_length=original,
        beta_fast=float(given.get("beta_fast", 32.0)),
        beta_slow=float(given.get("beta_slow", 1.0)),
        attention_factor=None if attention is None else float(attention),
        truncate=bool(given.get("truncate", True)),
    )


def _magnitude(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def write_rope(config: TransformerConfig) -> dict[str, Any]:
    """The keys for rotary positions that are the same in all layers, for both spellings.

    Returns:
        `rope_theta`, `rope_scaling` (null without) and `rope_parameters`.
    """
    rules = write_rules(config.rope_scaling)
    return {
        "rope_theta": config.rope_base,
        "rope_scaling": rules or None,
        "rope_parameters": {"rope_theta": config.rope_base, "rope_type": "default", **rules},
    }


def write_rules(scaling: RopeScaling | None) -> dict[str, Any]:
    """One set of rules without its base.

    Returns:
        keys and values; {} without scaling.
    """
    if scaling is None:
        return {}
    rules: dict[str, Any] = {"rope_type": type(scaling).__setpoint__.tag, "factor": scaling.factor}
    if isinstance(scaling, Llama3):
        rules["low_freq_factor"] = scaling.low_frequency_factor
        rules["high_freq_factor"] = scaling.high_frequency_factor
        rules["original_max_position_embeddings"] = scaling.original_length
    elif isinstance(scaling, Yarn):
        rules["original_max_position_embeddings"] = scaling.original_length
        rules["beta_fast"] = scaling.beta_fast
        rules["beta_slow"] = scaling.beta_slow
        rules["truncate"] = scaling.truncate
        if scaling.attention_factor is not None:
            rules["attention_factor"] = scaling.attention_factor
    return rules
