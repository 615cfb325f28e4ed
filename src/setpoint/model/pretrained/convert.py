"""Rules between the keys of a config.json and the fields of the transformer, in both directions.

A family of models is a list of them; see `setpoint.model.pretrained.families`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

from setpoint.config import Config, SetpointError
from setpoint.model.attention.selection import kind_of, query_size
from setpoint.model.config import LayerNormConfig, RMSNormConfig, TransformerConfig
from setpoint.model.pretrained.document import LARGEST, Document, reasons
from setpoint.model.rope.config import Linear, Llama3, RopeScaling, Yarn

Fields = dict[str, Any]
"""Fields of the transformer by their paths, such as `dim` or `moe.top_k`."""

GATED: Final = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_pytorch_tanh": "geglu_tanh",
    "gelu_new": "geglu_tanh",
    "relu": "reglu",
}
"""Activations of gated feed-forward networks by their names in config.json."""

UNGATED: Final = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu_squared",
}
"""Activations of feed-forward networks without a gate."""

SECTIONS: Final = {"MLA": "latent attention", "MoE": "a mixture of experts", "MuP": "muP"}
"""Names of sections of which there is one kind."""

REQUIRED: Final = object()
"""Default of a key that must be present."""


class Misfit(NamedTuple):
    """A field whose value a family cannot express.

    Arguments:
        field: path in `TransformerConfig`.
    """

    field: str
    value: str
    wanted: str


def value_at(config: Config, path: str) -> Any:
    """The value of a field by its path."""
    value: Any = config
    for name in path.split("."):
        value = getattr(value, name)
    return value


def meaning_of(config: TransformerConfig, path: str) -> object:
    """The value of a field in a normal form, by which two configurations are compared.

    Returns:
        None for the usual scale of attention; the attention types of all layers; norms and sections
        by name.
    """
    value = value_at(config, path)
    if path == "attention_scale" and value == query_size(config) ** -0.5:
        return None
    if path == "attention_pattern":
        kinds = tuple(layer_kinds(config))
        return kinds[:1] if len(set(kinds)) == 1 else kinds
    return named(value)


def named(value: object) -> object:
    """A norm, a section or a variant by name; other values as they are."""
    if isinstance(value, RMSNormConfig):
        return "rms_norm, zero-centered" if value.zero_centered else "rms_norm"
    if isinstance(value, LayerNormConfig):
        return "layer_norm" if value.bias else "layer_norm without bias"
    if isinstance(value, Config):
        return type(value).__setpoint__.tag or SECTIONS[type(value).__name__]
    return value


def shown(value: object) -> str:
    """A value as a configuration file has it."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, tuple):
        return f"[{', '.join(str(item) for item in value)}]"
    return str(value)


class Rule:
    """One or several keys of config.json and the fields that they stand for."""

    fields: tuple[str, ...] = ()
    """Paths of the fields."""

    def read(self, document: Document, known: Fields) -> Fields:
        """Read the fields.

        Arguments:
            known: the fields that the rules before have read.
        """
        del document, known
        return {}

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        """Write the keys."""
        del config
        return {}

    def misfits(self, config: TransformerConfig) -> Iterator[Misfit]:
        """Find values of the fields that the keys cannot express."""
        del config
        yield from ()


@dataclass(frozen=True)
class Key(Rule):
    """A key that stands for a field, or for several with equal values.

    Arguments:
        path: of the field; further ones follow after commas. Empty: the key has no effect here.
        default: value of an absent key.
        null: the field's value where the key is null, from the fields before; None: null is
            refused.
        get: the value to write; None: the field's.
        read_as, write_as: conversions between key and field.
    """

    name: str
    path: str = ""
    default: Any = REQUIRED
    null: Callable[[Fields], Any] | None = None
    get: Callable[[TransformerConfig], Any] | None = None
    read_as: Callable[[Any], Any] = lambda value: value
    write_as: Callable[[Any], Any] = lambda value: value

    @property
    def fields(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See `Rule.fields`."""
        return tuple(self.path.split(",")) if self.path else ()

    def read(self, document: Document, known: Fields) -> Fields:
        value = self.value(document)
        value = self.null(known) if value is None and self.null else self.read_as(value)
        return dict.fromkeys(self.fields, value)

    def value(self, document: Document) -> Any:
        """The value of the key."""
        return document.value(self.name)

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        if not self.fields:
            return {}
        value = value_at(config, self.fields[0]) if self.get is None else self.get(config)
        return {self.name: self.write_as(value)}

    def misfits(self, config: TransformerConfig) -> Iterator[Misfit]:
        for other in self.fields[1:] if self.get is None else ():
            wanted, value = value_at(config, self.fields[0]), value_at(config, other)
            if value != wanted:
                yield Misfit(other, shown(value), f"{shown(wanted)}, as {self.fields[0]}")

    @property
    def presence(self) -> dict[str, Any]:
        """Arguments for a document about absent and null keys."""
        given = {} if self.default is REQUIRED else {"default": self.default}
        return {**given, "optional": self.null is not None}


@dataclass(frozen=True)
class Int(Key):
    """A key with an int.

    Arguments:
        other: an older name of the key, which may not contradict it.
    """

    at_least: int = 1
    other: str = ""

    def value(self, document: Document) -> Any:
        name = self.other if self.other and document.has(self.other) else self.name
        known = document.value(self.name)
        if document.has(self.name) and known != document.value(name):
            document.refuse(name, f"contradicts {self.name}")
        return document.integer(name, at_least=self.at_least, **self.presence)


@dataclass(frozen=True)
class Number(Key):
    """A key with a float.

    Arguments:
        positive: whether zero and less are refused.
    """

    positive: bool = False

    def value(self, document: Document) -> Any:
        value = document.number(self.name, **self.presence)
        if self.positive and value is not None and value <= 0:
            document.refuse(self.name, "must be positive")
            return 1.0
        return value


@dataclass(frozen=True)
class Flag(Key):
    """A key that is true or false."""

    def value(self, document: Document) -> Any:
        return document.flag(self.name, self.default)


@dataclass(frozen=True)
class Choice(Key):
    """A key with a word.

    Arguments:
        words: their meanings here; the first of several with one meaning is written.
    """

    words: Mapping[str, Any] = field(default_factory=lambda: GATED)

    def value(self, document: Document) -> Any:
        return document.choice(self.name, self.default, self.words)

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        value = value_at(config, self.fields[0])
        return {self.name: next(word for word, meaning in self.words.items() if meaning == value)}

    def misfits(self, config: TransformerConfig) -> Iterator[Misfit]:
        value = value_at(config, self.fields[0])
        if value not in self.words.values():
            known = " or ".join(map(shown, dict.fromkeys(self.words.values())))
            yield Misfit(self.fields[0], shown(value), known)


@dataclass(frozen=True)
class Must(Rule):
    """A key that has one meaning here.

    Arguments:
        allowed: its values, or a field that it may repeat; an absent key is allowed.
        reason: of the refusal of others.
        writes: whether the first value is written.
    """

    name: str
    allowed: tuple[object, ...] | str
    reason: str
    writes: bool = False

    def read(self, document: Document, known: Fields) -> Fields:
        allowed = self.allowed
        allowed = (None, known[allowed]) if isinstance(allowed, str) else allowed
        document.must_be(self.name, allowed, self.reason)
        return {}

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        return {self.name: self.allowed[0]} if self.writes else {}


@dataclass(frozen=True)
class PlainInit(Rule):
    """The initialization of families that start all projections alike."""

    def read(self, document: Document, known: Fields) -> Fields:
        return {"residual_init": "plain"}


@dataclass(frozen=True)
class Computed(Rule):
    """A field without a key, which transformers computes from others.

    Arguments:
        formula: as people read it.
    """

    path: str
    compute: Callable[[Fields], Any]
    formula: str

    @property
    def fields(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See `Rule.fields`."""
        return (self.path,)

    def read(self, document: Document, known: Fields) -> Fields:
        return {self.path: self.compute(known)}

    def misfits(self, config: TransformerConfig) -> Iterator[Misfit]:
        value = value_at(config, self.path)
        names = ("dim", "layers", "heads", "kv_heads", "head_dim")
        if value != self.compute({name: getattr(config, name) for name in names}):
            text = f"{value:g}" if isinstance(value, float) else shown(value)
            yield Misfit(self.path, text, self.formula)


class EvenHeads(Rule):
    """A width that the heads divide, as some classes of transformers demand."""

    def misfits(self, config: TransformerConfig) -> Iterator[Misfit]:
        if config.dim % config.heads:
            yield Misfit("heads", str(config.heads), f"a divisor of dim = {config.dim}")


@dataclass(frozen=True)
class QueryScalar(Rule):
    """`query_pre_attn_scalar`, whose inverse root is the scale of attention; an int."""

    fields = ("attention_scale",)

    def read(self, document: Document, known: Fields) -> Fields:
        scalar = Number("query_pre_attn_scalar", "", 256, positive=True).value(document)
        usual = known["head_dim"] ** -0.5
        return {"attention_scale": None if scalar**-0.5 == usual else scalar**-0.5}

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        return {"query_pre_attn_scalar": self._scalar(config)}

    def misfits(self, config: TransformerConfig) -> Iterator[Misfit]:
        scale, written = config.attention_scale, self._scalar(config) ** -0.5
        if scale is not None and not math.isclose(written, scale, rel_tol=1e-12):
            yield Misfit("attention_scale", f"{scale:g}", "1 / sqrt(a whole number)")

    @staticmethod
    def _scalar(config: TransformerConfig) -> int:
        scale = config.attention_scale
        return config.head_dim if scale is None else round(scale**-2)


class DenseLayers(Rule):
    """`mlp_only_layers`: the layers without experts, which must be the first ones."""

    fields = ("moe.first_dense",)

    def read(self, document: Document, known: Fields) -> Fields:
        dense = document.value("mlp_only_layers") or []
        numbers = isinstance(dense, list) and all(type(layer) is int for layer in dense)
        first = list(range(len(dense))) if numbers else None
        if not numbers or sorted(dense) != first or len(dense) > known["layers"]:
            document.refuse(
                "mlp_only_layers", "only the first layers can be without experts, as in [0, 1]"
            )
            dense = []
        return {"moe.first_dense": len(dense)}

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        return {"mlp_only_layers": list(range(value_at(config, "moe.first_dense")))}


class Chosen(Rule):
    """`num_experts_per_tok`, no more than there are experts."""

    fields = ("moe.top_k",)

    def __init__(self, default: Any) -> None:
        self.default = default

    def read(self, document: Document, known: Fields) -> Fields:
        experts, name = known["moe.experts"], "num_experts_per_tok"
        top_k = document.integer(name, self.default)
        if top_k > experts:
            document.refuse(name, f"there are {experts} experts only")
        return {"moe.top_k": top_k}

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        return {"num_experts_per_tok": value_at(config, "moe.top_k")}


# Attention types of layers.

KINDS: Final = {"full_attention": "full", "sliding_attention": "sliding"}
Pattern = Callable[[Document, int, int | None], Sequence[str]]


def shortest_pattern(kinds: Sequence[str]) -> tuple[str, ...]:
    """The shortest pattern that gives a row when it is repeated.

    Returns:
        its beginning: `("sliding", "full")` for sliding, full, sliding.
    """
    for length in range(1, len(kinds)):
        if all(kind == kinds[index % length] for index, kind in enumerate(kinds)):
            return tuple(kinds[:length])
    return tuple(kinds)


def layer_kinds(config: TransformerConfig) -> list[str]:
    """The attention type of each layer, `full` or `sliding`."""
    return [kind_of(config, layer) for layer in range(config.layers)]


def all_alike(document: Document, layers: int, window: int | None) -> list[str]:
    """The attention types of a family whose layers all slide, or none does."""
    del document
    return ["full" if window is None else "sliding"] * layers


def every_nth_full(count: int) -> Pattern:
    """The attention types of a family of which every n-th layer is full, the others sliding."""

    def kinds(document: Document, layers: int, window: int | None) -> list[str]:
        return ["sliding" if (index + 1) % count else "full" for index in range(layers)]

    return kinds


@dataclass(frozen=True)
class Windows(Rule):
    """Sliding windows: `sliding_window` and `layer_types`.

    Arguments:
        otherwise: attention types of a file without layer_types, from the document, the number of
            layers and the window.
        switch: a key without which no layer slides; empty: none.
        listed: whether layer_types is read and written; a family without it has layers that are
            all alike.
        first: whether `max_window_layers` is the first layer that slides.
        always: whether a model that does not slide has a number, too.
    """

    otherwise: Pattern
    default: int | None = 4096
    switch: str = ""
    listed: bool = True
    first: bool = False
    always: bool = False
    fields = ("attention_pattern", "sliding_window")

    def read(self, document: Document, known: Fields) -> Fields:
        layers = known["layers"]
        window = document.integer("sliding_window", self.default, optional=True)
        if self.switch and not document.flag(self.switch, False):
            window = None
        kinds = list(self.otherwise(document, layers, window))
        types = document.value("layer_types")
        if types is not None:
            is_list = isinstance(types, list) and all(isinstance(name, str) for name in types)
            if not is_list or len(types) != layers or any(name not in KINDS for name in types):
                document.refuse(
                    "layer_types",
                    f"must name a kind for each of {layers} layers: {', '.join(KINDS)}",
                )
                return {}
            if not self.listed and kinds != [KINDS[name] for name in types]:
                document.refuse("layer_types", "all layers are as sliding_window says")
            kinds = [KINDS[name] for name in types]
        if "sliding" not in kinds:
            return {"attention_pattern": ("full",), "sliding_window": None}
        if window is None:
            document.refuse("layer_types", "has sliding layers, and no sliding_window is given")
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
            # transformers 4 reads this in place of layer_types, and so can the usual form.
            keys["max_window_layers"] = kinds.index("sliding") if slides else config.layers
        if self.listed:
            names = {kind: name for name, kind in KINDS.items()}
            keys["layer_types"] = [names[kind] for kind in kinds]
        return keys

    def misfits(self, config: TransformerConfig) -> Iterator[Misfit]:
        if not self.listed and len(set(layer_kinds(config))) > 1:
            yield Misfit(
                "attention_pattern", shown(config.attention_pattern), "[full] or [sliding]"
            )


# Rotary positions. transformers 4: rope_theta and rope_scaling; 5: both in rope_parameters.

_ROPE_KEYS: Final = {
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
"""Keys of each `rope_type`."""


@dataclass(frozen=True)
class Rope(Rule):
    """Rotary positions that are the same in all layers.

    Arguments:
        base: rope_theta of a file without one.
    """

    base: float = 10_000.0
    fields: tuple[str, ...] = ("rope_base", "rope_scaling")

    def read(self, document: Document, known: Fields) -> Fields:
        length = known["max_sequence_length"]
        given = document.number("rope_theta", None)
        base = given or self.base
        sources = {name: document.value(name) for name in ("rope_scaling", "rope_parameters")}
        found = [
            read_rope(document, name, keys, base, length) for name, keys in sources.items() if keys
        ]
        if len(found) == 2 and found[0] != found[1]:
            document.refuse("rope_scaling", "contradicts rope_parameters")
        rope_base, scaling = found[0] if found else (base, None)
        if given is not None and given != rope_base:
            name = "rope_scaling" if sources["rope_scaling"] else "rope_parameters"
            document.refuse("rope_theta", f"contradicts the {rope_base:g} of {name}")
        return {"rope_base": rope_base, "rope_scaling": scaling}

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        keys = write_rope(config.rope_scaling)
        return {
            "rope_theta": config.rope_base,
            "rope_scaling": keys or None,
            "rope_parameters": {"rope_theta": config.rope_base, "rope_type": "default", **keys},
        }


@dataclass(frozen=True)
class RopeByKind(Rope):
    """Rotary positions of which sliding layers have a base of their own, without scaling.

    To be listed behind `Windows`.

    Arguments:
        sliding: rope_theta of sliding layers of a file without one; None: that of full layers.
        local: the key of transformers 4 for it; empty: none.
    """

    sliding: float | None = None
    local: str = ""
    fields: tuple[str, ...] = ("rope_base", "rope_scaling", "rope_base_sliding")

    def read(self, document: Document, known: Fields) -> Fields:
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
            document.refuse("rope_parameters", "must have a mapping for each kind of layers")
            parts = cast(Mapping[str, Any], {})
        full = {**(parts.get("full_attention") or {}), **(older or {})}
        sliding = parts.get("sliding_attention") or {}
        name, usual = "rope_parameters" if parts else "rope_scaling", self.sliding or self.base
        rope_base, scaling = read_rope(document, name, full, base or self.base, length)
        rope_local, stretched = read_rope(document, name, sliding, local or usual, length)
        if stretched is not None:
            document.refuse("rope_parameters", "positions in windows cannot be stretched")
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

    def misfits(self, config: TransformerConfig) -> Iterator[Misfit]:
        slides = "sliding" in layer_kinds(config)
        if slides and config.rope_scaling is not None and config.rope_base_sliding is None:
            yield Misfit("rope_base_sliding", "null", "a number, with rope_scaling")


@dataclass(frozen=True)
class LatentRope(Rope):
    """Rotary positions of latent attention, whose YaRN scales all products of queries and keys.

    The scale of attention is magnitude(mscale_all_dim)^2 / sqrt(query size), with magnitude(m) =
    0.1 m ln(factor) + 1, and that of rotated components magnitude(mscale) /
    magnitude(mscale_all_dim) (DeepSeek-V2, 2024).
    """

    fields: tuple[str, ...] = ("rope_base", "rope_scaling", "attention_scale")

    def read(self, document: Document, known: Fields) -> Fields:
        fields = super().read(document, known)
        keys = document.value("rope_scaling") or document.value("rope_parameters")
        scaling, scale = fields["rope_scaling"], None
        if isinstance(scaling, Yarn) and keys.get("mscale_all_dim"):
            size = known["mla.nope_head_dim"] + known["mla.rope_head_dim"]
            scale = _magnitude(scaling.factor, keys["mscale_all_dim"]) ** 2 / math.sqrt(size)
        return {**fields, "attention_scale": scale}

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        keys, scaling = super().write(config), config.rope_scaling
        if meaning_of(config, "attention_scale") is None or not isinstance(scaling, Yarn):
            return keys
        assert config.attention_scale is not None
        factor = scaling.factor
        whole = math.sqrt(config.attention_scale * math.sqrt(query_size(config)))
        rotated = scaling.attention_factor or _magnitude(factor, 1.0)
        mscales = {"mscale": rotated * whole, "mscale_all_dim": whole}
        # Rounded, so that what was read is written as it was.
        given = {n: round((v - 1) / (0.1 * math.log(factor)), 9) for n, v in mscales.items()}
        for rules in (keys["rope_scaling"], keys["rope_parameters"]):
            rules.pop("attention_factor", None)
            rules |= given
        return keys

    def misfits(self, config: TransformerConfig) -> Iterator[Misfit]:
        scale, scaling = meaning_of(config, "attention_scale"), config.rope_scaling
        stretched = isinstance(scaling, Yarn) and scaling.factor > 1
        if isinstance(scale, float) and not (stretched and scale * query_size(config) ** 0.5 > 1):
            yield Misfit("attention_scale", f"{scale:g}", "null, or larger with YaRN")


def read_rope(
    document: Document, name: str, rules: Any, base: float, length: int
) -> tuple[float, RopeScaling | None]:
    """Read rope_theta and the scaling of one mapping.

    Arguments:
        name: key of the mapping.
        base: where the mapping has no rope_theta.
        length: of the model, the original one where the mapping has none.
    """
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
    if not isinstance(kind, str) or kind not in _ROPE_KEYS:
        known = ", ".join(_ROPE_KEYS)
        document.refuse(name, f"the rule {kind!r} is not known here; known: {known}")
        return base, None
    unknown = [key for key in given if key not in _ROPE_KEYS[kind]]
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


def write_rope(scaling: RopeScaling | None) -> dict[str, Any]:
    """The mapping of a scaling without rope_theta; {} without one."""
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
