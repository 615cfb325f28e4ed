"""Rules for attention types of layers and for RoPE.

transformers 4 has rope_theta and rope_scaling; 5 has both in rope_parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, TypeVar, cast

from setpoint.config import SetpointError
from setpoint.model.attention.config import (
    AttentionTemperature,
    LinearScaling,
    Llama3Scaling,
    RopeScaling,
    YarnScaling,
)
from setpoint.model.attention.selection import query_size
from setpoint.model.config import TransformerConfig
from setpoint.model.pretrained.convert import (
    LARGEST,
    ConfigDocument,
    Fields,
    KeyRule,
    layer_kinds,
    meaning_of,
    reasons,
)

KINDS: Final = {"full_attention": "full", "sliding_attention": "sliding"}
T = TypeVar("T")
Pattern = Callable[[ConfigDocument, int, int | None], Sequence[str]]


def shortest_pattern(kinds: Sequence[T]) -> tuple[T, ...]:
    """Shortest pattern that yields a sequence when repeated.

    Returns:
        a prefix: `("sliding", "full")` for sliding, full, sliding.
    """
    for length in range(1, len(kinds)):
        if all(kind == kinds[index % length] for index, kind in enumerate(kinds)):
            return tuple(kinds[:length])
    return tuple(kinds)


def all_alike(document: ConfigDocument, layers: int, window: int | None) -> list[str]:
    """Attention types of a family in which either all layers are sliding or none."""
    return ["full" if window is None else "sliding"] * layers


def every_nth_full(count: int) -> Pattern:
    """Attention types with full attention in every n-th layer, and sliding windows otherwise."""

    def kinds(document: ConfigDocument, layers: int, window: int | None) -> list[str]:
        return ["sliding" if (index + 1) % count else "full" for index in range(layers)]

    return kinds


def first_layers_full(document: ConfigDocument, layers: int, window: int | None) -> list[str]:
    """Attention types of Qwen 2 and 3, where the upper layers are sliding."""
    first = document.integer("max_window_layers", 28, at_least=0)
    return ["sliding" if window and index >= first else "full" for index in range(layers)]


def gemma3_pattern(document: ConfigDocument, layers: int, window: int | None) -> list[str]:
    """Attention types of Gemma 3, where every n-th layer is full."""
    name, older = "_sliding_window_pattern", "sliding_window_pattern"
    every = document.integer(older if document.has(older) else name, 6)
    for unread in (name, older):
        document.value(unread)
    return list(every_nth_full(every)(document, layers, window))


def first_layers_sliding(document: ConfigDocument, layers: int, window: int | None) -> list[str]:
    """Attention types of Qwen 2 with experts, where every other lower layer is sliding."""
    last = document.integer("max_window_layers", 28, at_least=0)
    slides = [bool(window) and index % 2 == 0 and index < last for index in range(layers)]
    return ["sliding" if slide else "full" for slide in slides]


def smollm3_pattern(document: ConfigDocument, layers: int, window: int | None) -> list[str]:
    """Attention types of SmolLM 3, where layers without positions are sliding."""
    rotated = rope_layers(document, layers)
    return ["full" if rotates or window is None else "sliding" for rotates in rotated]


def read_layer_types(
    document: ConfigDocument, layers: int, names: Mapping[str, str], usual: list[str]
) -> list[str]:
    """Attention types of all layers, from `layer_types`.

    Arguments:
        names: the types in a family, by their names in the file.
        usual: types if the key is absent.
    """
    types = document.value("layer_types")
    if types is None:
        return usual
    is_list = isinstance(types, list) and all(isinstance(name, str) for name in types)
    if not is_list or len(types) != layers or any(name not in names for name in types):
        document.refuse(
            "layer_types", f"must list a type for each of {layers} layers: {', '.join(names)}"
        )
        return usual
    return [names[name] for name in types]


@dataclass(frozen=True)
class Windows(KeyRule):
    """Sliding windows: `sliding_window` and `layer_types`.

    Arguments:
        otherwise: returns the attention types without layer_types, from the document, the number of
            layers and the window.
        switch: key that enables sliding layers; empty: none.
        listed: whether layer_types is read and written; otherwise all layers are alike.
        first: whether `max_window_layers` is the first sliding layer.
        always: whether models without sliding layers have a window size, too.
    """

    otherwise: Pattern
    default: int | None = 4096
    switch: str = ""
    listed: bool = True
    first: bool = False
    always: bool = False

    def read(self, document: ConfigDocument, known: Fields) -> Fields:
        layers = known["layers"]
        window = None
        if self.switch and not document.flag(self.switch, False):
            document.value("sliding_window")  # without effect, perhaps 0
        else:
            window = document.integer("sliding_window", self.default, optional=True)
        usual = list(self.otherwise(document, layers, window))
        kinds = read_layer_types(document, layers, KINDS, usual)
        if not self.listed and kinds != usual:
            document.refuse("layer_types", "all layers have the type given by sliding_window")
        if "sliding" not in kinds:
            return {"attention_pattern": ("full",), "sliding_window": None}
        if window is None:
            document.refuse("layer_types", "has sliding layers without a sliding_window")
        return {"attention_pattern": shortest_pattern(kinds), "sliding_window": window}

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        kinds = layer_kinds(config)
        slides = "sliding" in kinds
        window = config.sliding_window if slides else None
        if self.always:
            window = config.sliding_window or config.max_sequence_length
        keys: dict[str, Any] = {"sliding_window": window}
        if self.switch:
            keys[self.switch] = slides
        if self.first:
            # transformers 4 reads this instead of layer_types; `otherwise` may read it, too.
            keys["max_window_layers"] = kinds.index("sliding") if slides else config.layers
        if self.listed:
            names = {kind: name for name, kind in KINDS.items()}
            keys["layer_types"] = [names.get(kind, kind) for kind in kinds]  # refused when read
        return keys


_ROPE_KEYS: Final = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
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
"""Keys of each `rope_type`."""


class RopeKeys(NamedTuple):
    """RoPE of some layers.

    Arguments:
        base: rope_theta.
        fraction: fraction of a head's dimensions that are rotated.
    """

    base: float
    scaling: RopeScaling | None = None
    fraction: float = 1.0


@dataclass(frozen=True)
class Rope(KeyRule):
    """RoPE that is the same in all layers.

    Arguments:
        base: default of rope_theta.
        fraction: default of partial_rotary_factor; None: the family has no such key.
        stretches: whether transformers supports the scalings of `_ROPE_KEYS` in the family.
        scaling: default of rope_parameters.
    """

    base: float = 10_000.0
    fraction: float | None = None
    stretches: bool = True
    scaling: Mapping[str, Any] | None = None

    def read(self, document: ConfigDocument, known: Fields) -> Fields:
        length = known["max_sequence_length"]
        given = document.number("rope_theta", None)
        fraction = self.fraction or 1.0
        if self.fraction is not None:
            fraction = document.number("partial_rotary_factor", fraction)
        default = RopeKeys(given or self.base, None, fraction)
        sources = {name: document.value(name) for name in ("rope_scaling", "rope_parameters")}
        if not any(sources.values()):
            sources["rope_parameters"] = self.scaling
        read = [read_rope(document, n, k, default, length) for n, k in sources.items() if k]
        if len(read) == 2 and read[0] != read[1]:
            document.refuse("rope_scaling", "contradicts rope_parameters")
        base, scaling, fraction = read[0] if read else default
        if given is not None and given != base:
            name = "rope_scaling" if sources["rope_scaling"] else "rope_parameters"
            document.refuse("rope_theta", f"contradicts the {base:g} of {name}")
        if fraction != 1.0 and self.fraction is None:
            name = "rope_parameters" if sources["rope_parameters"] else "rope_scaling"
            document.refuse(name, "this family does not support partial rotation")
            fraction = 1.0
        if scaling is not None and not self.stretches:
            name = "rope_scaling" if sources["rope_scaling"] else "rope_parameters"
            document.refuse(name, "transformers has no such scaling in this family")
        size = None if fraction == 1.0 else int(known["head_dim"] * fraction)
        return {"rope_base": base, "rope_scaling": scaling, "rope_dim": size}

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        keys = write_rope(config.rope_scaling)
        part: dict[str, Any] = {}
        if self.fraction is not None:
            part = {"partial_rotary_factor": (config.rope_dim or config.head_dim) / config.head_dim}
        default = {"rope_theta": config.rope_base, "rope_type": "default"}
        return {
            "rope_theta": config.rope_base,
            **part,
            "rope_scaling": keys or None,
            "rope_parameters": {**default, **keys, **part},
        }


def rope_layers(document: ConfigDocument, layers: int) -> list[bool]:
    """The layers of SmolLM 3 and Llama 4 that have RoPE."""
    every = document.integer("no_rope_layer_interval", 4)
    listed = document.value("no_rope_layers")
    if listed in (None, []):
        return [(index + 1) % every != 0 for index in range(layers)]
    if not isinstance(listed, list) or len(listed) < layers or {*listed} - {0, 1}:
        document.refuse("no_rope_layers", f"must have 0 or 1 for each of {layers} layers")
        return [True] * layers
    return [bool(rotates) for rotates in listed[:layers]]


class RopeLayers(KeyRule):
    """`no_rope_layers`: 1 for layers with RoPE."""

    def read(self, document: ConfigDocument, known: Fields) -> Fields:
        return {"rope_pattern": shortest_pattern(rope_layers(document, known["layers"]))}

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        return {"no_rope_layers": [int(config.rotates(layer)) for layer in range(config.layers)]}


class Chunks(KeyRule):
    """Chunked attention in layers with RoPE: `attention_chunk_size` and `layer_types`.

    It must follow `RopeLayers`.
    """

    names: ClassVar = {"full_attention": "full", "chunked_attention": "chunked"}

    def read(self, document: ConfigDocument, known: Fields) -> Fields:
        layers, rotated = known["layers"], known["rope_pattern"]
        chunk = document.integer("attention_chunk_size", 8192)
        usual = ["chunked" if rotated[i % len(rotated)] else "full" for i in range(layers)]
        kinds = read_layer_types(document, layers, self.names, usual)
        chunk = chunk if "chunked" in kinds else None
        return {"attention_pattern": shortest_pattern(kinds), "attention_chunk": chunk}

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        names = {kind: name for name, kind in self.names.items()}
        return {
            "attention_chunk_size": config.attention_chunk or config.max_sequence_length,
            "layer_types": [names.get(kind, kind) for kind in layer_kinds(config)],
        }


class RotatedNorms(KeyRule):
    """`use_qk_norm`: norms of queries and keys without weights, in layers with RoPE.

    Llama 4 applies them after RoPE, which preserves the length of vectors. It must follow `Rope`
    and `RopeLayers`.
    """

    def read(self, document: ConfigDocument, known: Fields) -> Fields:
        if not document.flag("use_qk_norm", True):
            return {}
        if isinstance(known["rope_scaling"], YarnScaling):
            document.refuse("use_qk_norm", "undoes the scale of queries and keys by YaRN")
        pattern = known["rope_pattern"]
        return {"qk_norm": True, "qk_norm_weights": False, "qk_norm_pattern": pattern}

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        return {"use_qk_norm": config.qk_norm}


class Temperature(KeyRule):
    """`attn_temperature_tuning`: scaling of queries by position, in layers without RoPE.

    It must follow `RopeLayers`.
    """

    def read(self, document: ConfigDocument, known: Fields) -> Fields:
        is_tuned = document.flag("attn_temperature_tuning", True)
        interval = document.integer("floor_scale", 8192)
        scale = document.number("attn_scale", 0.1)
        if scale < 0:
            document.refuse("attn_scale", "must not be negative")
        if not is_tuned or scale <= 0 or all(known["rope_pattern"]):
            return {}
        return {"attention_temperature": AttentionTemperature(interval=interval, scale=scale)}

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        tuned = config.attention_temperature
        if tuned is None:
            return {"attn_temperature_tuning": False}
        return {
            "attn_temperature_tuning": True,
            "floor_scale": tuned.interval,
            "attn_scale": tuned.scale,
        }


@dataclass(frozen=True)
class RopeByKind(Rope):
    """RoPE with a separate base, and without scaling, in sliding layers.

    It must follow `Windows`.

    Arguments:
        sliding: default rope_theta of sliding layers; None: as in full layers.
        local: key in transformers 4; empty: none.
    """

    sliding: float | None = None
    local: str = ""

    def read(self, document: ConfigDocument, known: Fields) -> Fields:
        length = known["max_sequence_length"]
        base = document.number("rope_theta", None)
        local = document.number(self.local, None) if self.local else base
        older, newer = document.value("rope_scaling"), document.value("rope_parameters") or {}
        if not isinstance(newer, Mapping) or set(newer) - KINDS.keys():
            document.refuse("rope_parameters", f"must have {' and '.join(KINDS)}")
            newer = {}
        if not isinstance(older or {}, Mapping):
            document.refuse("rope_scaling", "must be a mapping")
            older = None
        parts = cast(Mapping[str, Any], newer)
        if not all(isinstance(keys or {}, Mapping) for keys in parts.values()):
            document.refuse("rope_parameters", "must have a mapping for each attention type")
            parts = cast(Mapping[str, Any], {})
        full = {**(parts.get("full_attention") or {}), **(older or {})}
        sliding = parts.get("sliding_attention") or {}
        name, default = "rope_parameters" if parts else "rope_scaling", self.sliding or self.base
        defaults = RopeKeys(base or self.base), RopeKeys(local or default)
        rope_base, scaling, part = read_rope(document, name, full, defaults[0], length)
        rope_local, stretched, _ = read_rope(document, name, sliding, defaults[1], length)
        if part != 1.0:
            document.refuse(name, "this family does not support partial rotation")
        if stretched is not None:
            document.refuse("rope_parameters", "RoPE of sliding layers cannot be scaled")
        for key, given, used in (
            ("rope_theta", base, rope_base),
            (self.local, local if self.local else None, rope_local),
        ):
            if given is not None and given != used:
                document.refuse(key, f"contradicts the {used:g} of rope_parameters")
        pattern = known.get("attention_pattern")
        if pattern == ("sliding",):  # with one kind of layers there is one base
            return {"rope_base": rope_local, "rope_scaling": None, "rope_base_sliding": None}
        same = pattern == ("full",) or (rope_local, None) == (rope_base, scaling)
        return {
            "rope_base": rope_base,
            "rope_scaling": scaling,
            "rope_base_sliding": None if same else rope_local,
        }

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        keys = write_rope(config.rope_scaling)
        full, local = config.rope_base, config.rope_base_sliding or config.rope_base
        return {
            "rope_theta": full,
            **({self.local: local} if self.local else {}),
            "rope_scaling": keys or None,
            "rope_parameters": {
                "full_attention": {"rope_theta": full, "rope_type": "default", **keys},
                "sliding_attention": {"rope_theta": local, "rope_type": "default"},
            },
        }


@dataclass(frozen=True)
class LatentRope(Rope):
    """RoPE of latent attention; its YaRN scales all query-key products.

    The attention scale is magnitude(mscale_all_dim)^2 / sqrt(query size), with magnitude(m) = 0.1 m
    ln(factor) + 1; rotated components are scaled by magnitude(mscale) / magnitude(mscale_all_dim)
    (DeepSeek-V2, 2024).
    """

    def read(self, document: ConfigDocument, known: Fields) -> Fields:
        fields = super().read(document, known)
        keys = document.value("rope_scaling") or document.value("rope_parameters")
        scaling, scale = fields["rope_scaling"], None
        if isinstance(scaling, YarnScaling) and keys.get("mscale_all_dim"):
            size = known["mla.nope_head_dim"] + known["mla.rope_head_dim"]
            scale = _magnitude(scaling.factor, keys["mscale_all_dim"]) ** 2 / math.sqrt(size)
        return {**fields, "attention_scale": scale}

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        keys, scaling = super().write(config), config.rope_scaling
        if meaning_of(config, "attention_scale") is None or not isinstance(scaling, YarnScaling):
            return keys
        assert config.attention_scale is not None
        factor = scaling.factor
        if factor == 1.0:  # its scale is 1 for any mscale
            return keys
        total = math.sqrt(config.attention_scale * math.sqrt(query_size(config)))
        rotated = scaling.attention_factor or _magnitude(factor, 1.0)
        mscales = {"mscale": rotated * total, "mscale_all_dim": total}
        given = {n: (v - 1) / (0.1 * math.log(factor)) for n, v in mscales.items()}
        for name, value in given.items():
            # Rounded if that changes nothing, so that values are written as they were read.
            if math.isclose(round(value, 9), value, rel_tol=1e-12):
                given[name] = round(value, 9)
        for rules in (keys["rope_scaling"], keys["rope_parameters"]):
            rules.pop("attention_factor", None)
            rules |= given
        return keys


def read_rope(
    document: ConfigDocument, name: str, rules: Any, default: RopeKeys, length: int
) -> RopeKeys:
    """Read rope_theta, scaling and rotated fraction from one mapping.

    Arguments:
        name: key of the mapping.
        default: values of absent keys.
        length: context length of the model, the default of the original length.
    """

    def refuse(why: str) -> RopeKeys:
        document.refuse(name, why)
        return default

    if not isinstance(rules, Mapping):
        return refuse("must be a mapping")
    given = dict(cast(Mapping[str, Any], rules))
    theta = given.pop("rope_theta", None)
    old_kind = given.pop("type", None)
    kind = given.pop("rope_type", old_kind) or "default"
    given = {key: value for key, value in given.items() if value is not None}
    fraction = given.pop("partial_rotary_factor", default.fraction)
    if not isinstance(kind, str) or kind not in _ROPE_KEYS:
        known = ", ".join(_ROPE_KEYS)
        return refuse(f"the type {kind!r} is not supported. Valid: {known}")
    if unknown := [key for key in given if key not in _ROPE_KEYS[kind]]:
        return refuse(f"the type {kind!r} has no {', '.join(unknown)}")
    for key, value in (("rope_theta", theta), ("partial_rotary_factor", fraction)):
        if value is not None and not _is_number(value):
            return refuse(f"{key} must be a finite number")
    default = RopeKeys(default.base if theta is None else float(theta), None, float(fraction))
    if kind == "default":
        return default
    wrong = [k for k, v in given.items() if k != "truncate" and not _is_number(v)]
    if wrong:
        return refuse(f"the type {kind!r}: {wrong[0]} must be a finite number")
    if kind in ("llama3", "yarn"):
        original = given.setdefault("original_max_position_embeddings", length)
        if original < 1:
            return refuse(f"the type {kind!r}: the original length must be at least 1")
        if kind == "yarn":
            given.setdefault("factor", length / original)
    if "factor" not in given:
        return refuse(f"the type {kind!r} needs a factor")
    try:
        return default._replace(scaling=_scaling(kind, given))
    except SetpointError as error:
        return refuse(f"the type {kind!r}: {reasons(error)}")


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and -LARGEST < cast(float, value) < LARGEST


def _scaling(kind: str, given: Mapping[str, Any]) -> RopeScaling:
    factor = float(given["factor"])
    if kind == "linear":
        return LinearScaling(factor=factor)
    original = int(given["original_max_position_embeddings"])
    if kind == "llama3":
        return Llama3Scaling(
            factor=factor,
            low_frequency_factor=float(given.get("low_freq_factor", 1.0)),
            high_frequency_factor=float(given.get("high_freq_factor", 4.0)),
            original_length=original,
        )
    attention = given.get("attention_factor")
    scale, scale_all = given.get("mscale"), given.get("mscale_all_dim")
    if attention is None and scale and scale_all:
        attention = _magnitude(factor, scale) / _magnitude(factor, scale_all)
    return YarnScaling(
        factor=factor,
        original_length=original,
        beta_fast=float(given.get("beta_fast", 32.0)),
        beta_slow=float(given.get("beta_slow", 1.0)),
        attention_factor=None if attention is None else float(attention),
        truncate=bool(given.get("truncate", True)),
    )


def _magnitude(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def write_rope(scaling: RopeScaling | None) -> dict[str, Any]:
    """Mapping of a scaling, without rope_theta; {} without scaling."""
    if scaling is None:
        return {}
    rules: dict[str, Any] = {"rope_type": type(scaling).__setpoint__.tag, "factor": scaling.factor}
    if isinstance(scaling, Llama3Scaling):
        rules["low_freq_factor"] = scaling.low_frequency_factor
        rules["high_freq_factor"] = scaling.high_frequency_factor
        rules["original_max_position_embeddings"] = scaling.original_length
    elif isinstance(scaling, YarnScaling):
        rules["original_max_position_embeddings"] = scaling.original_length
        rules["beta_fast"] = scaling.beta_fast
        rules["beta_slow"] = scaling.beta_slow
        rules["truncate"] = scaling.truncate
        if scaling.attention_factor is not None:
            rules["attention_factor"] = scaling.attention_factor
    return rules
