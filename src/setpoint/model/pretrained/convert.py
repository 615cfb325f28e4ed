"""Rules that relate config.json keys and fields of a transformer, in both directions.

A model family is a table of such rules; see `setpoint.model.pretrained.families`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

from setpoint.config import Config, ConfigError, SetpointError
from setpoint.model.attention.selection import kind_of, query_size
from setpoint.model.config import LayerNormConfig, RMSNormConfig, TransformerConfig
from setpoint.model.moe.config import SigmoidTopK
from setpoint.model.pretrained.tensor_files import KEY, unread_quantization
from setpoint.model.pretrained.weight_names import TensorNames

_ABSENT: Final = object()

LARGEST: Final = 2**31
"""Upper bound of numbers in a config.json; larger ones would exhaust memory in derived lists."""

_NO_EFFECT: Final = {
    "metadata of the file": "model_type architectures transformers_version "
    "_name_or_path name_or_path _commit_hash is_llama_config transformers.js_config "
    "unsloth_fixed unsloth_version",
    "the dtype of the weights, which their files also record": "dtype torch_dtype use_bfloat16",
    "generation settings and special tokens": "use_cache bos_token_id "
    "eos_token_id pad_token_id unk_token_id sep_token_id decoder_start_token_id "
    "cache_implementation max_length min_length do_sample early_stopping num_beams "
    "num_beam_groups diversity_penalty temperature top_k top_p typical_p repetition_penalty "
    "length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids "
    "num_return_sequences output_scores return_dict_in_generate forced_bos_token_id "
    "forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens "
    "begin_suppress_tokens tokenizer_class prefix max_sequence_length",
    "implementations with equal results": "attn_implementation _attn_implementation "
    "_attn_implementation_autoset _attn_implementation_internal experts_implementation "
    "_experts_implementation_internal pretraining_tp chunk_size_feed_forward torchscript "
    "tf_legacy_loss gradient_checkpointing",
    "additional outputs": "return_dict output_attentions output_hidden_states output_router_logits "
    "output_past",
    "heads for other tasks": "id2label label2id num_labels _num_labels problem_type "
    "finetuning_task task_specific_params",
}
NO_EFFECT: Final = frozenset(key for keys in _NO_EFFECT.values() for key in keys.split())
"""Keys that affect neither the weights nor the logits of a decoder."""

_MUST_BE: Mapping[str, tuple[object, ...]] = {
    "is_encoder_decoder": (False,),
    "is_decoder": (False, True),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "tie_encoder_decoder": (False,),
    "pruned_heads": ({},),
    "tie_last_hidden_states": (None,),
    "per_layer_config": (None, {}),
    "partial_rotary_factor": (None, 1, 1.0),
    "rope_interleaved": (None, False),
    "use_mrope": (None, False),
}
_REFUSED: Mapping[str, str] = {"auto_map": "refers to code in the repository, which is not run"}


class ConfigDocument:
    """The keys of a config.json, with a record of those that were read.

    Findings are collected, and reported together by `finish`.
    """

    def __init__(self, keys: Mapping[str, Any], path: str) -> None:
        self.path = path
        self._keys = keys
        self._read: set[str] = set()
        self.findings: list[tuple[str, str]] = []
        """Keys, each with a message."""

    def has(self, name: str) -> bool:
        """True if a key is present and not null.

        This does not count as reading it.
        """
        return self._keys.get(name) is not None

    def value(self, name: str, default: Any = None) -> Any:
        """Read a key of any type."""
        self._read.add(name)
        return self._keys.get(name, default)

    def integer(
        self, name: str, default: Any = _ABSENT, *, at_least: int = 1, optional: bool = False
    ) -> Any:
        """Read an int.

        Arguments:
            default: value if the key is absent; without it, the key is required.
        """
        kind = f"an int of at least {at_least}"
        number = self._typed(
            name, default, lambda value: type(value) is int and value >= at_least, kind, optional
        )
        if number is not None and number >= LARGEST:
            self.refuse(name, "is too large")
            return at_least
        return number

    def number(self, name: str, default: Any = _ABSENT, *, optional: bool = False) -> Any:
        """Read a float.

        Arguments:
            default: value if the key is absent; without it, the key is required.
        """

        def is_valid(value: Any) -> bool:
            return type(value) in (int, float) and -LARGEST < value < LARGEST

        number = self._typed(name, default, is_valid, "a finite number", optional)
        return number if number is None else float(number)

    def flag(self, name: str, default: bool) -> bool:
        """Read a bool; null counts as false."""
        if self._keys.get(name, default) is None:
            self._read.add(name)
            return False
        return self._typed(name, default, lambda value: type(value) is bool, "true or false", False)

    def choice(self, name: str, default: str, meanings: Mapping[str, str]) -> str:
        """Read a string, mapped to a field's value."""
        value = self.value(name, default)
        if isinstance(value, str) and value in meanings:
            return meanings[value]
        self.refuse(name, f"is not supported. Valid: {', '.join(meanings)}")
        return meanings[default]

    def must_be(self, name: str, allowed: Collection[object], why: str) -> None:
        """Refuse a key with a value other than those allowed."""
        value = self.value(name, _ABSENT)
        if value is not _ABSENT and value not in allowed:
            self.refuse(name, why)

    def refuse(self, name: str, why: str) -> None:
        """Add a finding."""
        self._read.add(name)
        shown = f"= {_shown(self._keys[name])}: " if name in self._keys else ": "
        self.findings.append((name, f"{shown}{why}"))

    def finish(self) -> None:
        """Refuse keys that were not read, and report all findings.

        Raises:
            SetpointError: names the key and value of each finding.
        """
        for name, allowed in _MUST_BE.items():
            if name not in self._read:
                self.must_be(name, allowed, "changes the model in a way that is not supported")
        for name, why in _REFUSED.items():
            if name not in self._read:
                self.must_be(name, (None, {}), why)
        quantization = self.value(KEY)
        if quantization and (reason := unread_quantization(quantization)):
            self.refuse(KEY, reason)
        unknown = [name for name in self._keys if name not in self._read | NO_EFFECT]
        for name in unknown:
            if self._keys[name] is not None:
                self.refuse(name, "is unknown, and might change the model")
        if self.findings:
            # Weight files have the same reader for every type.
            same = all(name.startswith(KEY) for name, _ in self.findings)
            lines = [f"{name}{'' if why[0] == ':' else ' '}{why}" for name, why in self.findings]
            raise SetpointError(
                f"{self.path} describes a model that Setpoint's transformer does not support:\n  "
                + "\n  ".join(lines)
                + ("" if same else '\n`type = "huggingface"` trains it with transformers.')
            )

    def _typed(
        self, name: str, default: Any, is_valid: Callable[[Any], bool], kind: str, optional: bool
    ) -> Any:
        self._read.add(name)
        value = self._keys.get(name, default)
        if value is _ABSENT:
            self.refuse(name, f"is missing; it must be {kind}")
        elif (value is None and (optional or default is None)) or is_valid(value):
            return value
        else:
            self.refuse(name, f"must be {kind}")
        # Anything built from it is discarded with the findings.
        return 1 if default is _ABSENT or default is None else default


def reasons(error: SetpointError) -> str:
    """Problems with values converted from a file, without locations in Setpoint's code."""
    if not isinstance(error, ConfigError):
        return str(error)
    texts = (f"{p.path} = {p.value}: {p.message}" for p in error.problems)
    return "; ".join(text.replace(" = None:", ":") for text in texts)


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


Fields = dict[str, Any]
"""Values of transformer fields by path, such as `dim` or `moe.top_k`."""

GATED: Final = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_pytorch_tanh": "geglu_tanh",
    "gelu_new": "geglu_tanh",
    "relu": "reglu",
}
"""Gated activations by their names in config.json."""

UNGATED: Final = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu_squared",
}
"""Activations without a gate, by their names in config.json."""

SECTIONS: Final = {
    "MLA": "latent attention",
    "MoE": "a mixture of experts",
    "MuP": "muP",
    "AttentionTemperature": "a temperature by position",
}
"""Names of sections that have no variants."""

PATTERNS: Final = ("attention_pattern", "rope_pattern", "qk_norm_pattern")
"""Fields with an item for each layer, which repeat."""

REQUIRED: Final = object()
"""Default of a required key."""


class Misfit(NamedTuple):
    """A field whose value a family cannot express.

    Arguments:
        field: path in `TransformerConfig`, or a key that cannot be written.
        reason: the value, and the required one.
    """

    field: str
    reason: str


def value_at(config: Config, path: str) -> Any:
    """Value of a field by path."""
    value: Any = config
    for name in path.split("."):
        value = getattr(value, name)
    return value


def layer_kinds(config: TransformerConfig) -> list[str]:
    """Attention type of each layer."""
    return [kind_of(config, layer) for layer in range(config.layers)]


def meaning_of(config: TransformerConfig, path: str) -> object:
    """Value of a field in normal form, for comparison.

    Returns:
        None for the default attention scale; the attention types of all layers; norms and sections
        by name; if all layers are sliding, their RoPE base as the only one, without scaling.
    """
    if config.rope_base_sliding is not None and config.count_layers("sliding") == config.layers:
        if path in ("rope_base_sliding", "rope_scaling"):
            return None
        if path == "rope_base":
            return config.rope_base_sliding
    value = value_at(config, path)
    if path == "attention_scale" and value == query_size(config) ** -0.5:
        return None
    if path == "moe.expert_dim":
        return expert_width(config)
    if path in PATTERNS:
        return _repeated(value, config.layers)
    return named(value)


def expert_width(config: TransformerConfig) -> int:
    """Intermediate size of an expert."""
    assert config.moe is not None
    return config.moe.width(config.ffn_dim)


def _repeated(pattern: Sequence[object], layers: int) -> tuple[object, ...]:
    """A pattern's items for all layers; one item if they are all equal."""
    expanded = tuple(pattern[layer % len(pattern)] for layer in range(layers))
    return expanded[:1] if len(set(expanded)) == 1 else expanded


def named(value: object) -> object:
    """A norm, section or variant by name; other values unchanged."""
    if isinstance(value, RMSNormConfig):
        return "rms_norm, zero-centered" if value.zero_centered else "rms_norm"
    if isinstance(value, LayerNormConfig):
        return "layer_norm" if value.bias else "layer_norm without bias"
    if isinstance(value, SigmoidTopK):
        return "sigmoid_top_k" if value.bias_rate is not None else "sigmoid_top_k without bias"
    if isinstance(value, Config):
        return type(value).__setpoint__.tag or SECTIONS[type(value).__name__]
    return value


def shown(value: object) -> str:
    """A value as written in a configuration file."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, tuple):
        return f"[{', '.join(map(shown, cast(tuple[object, ...], value)))}]"
    return str(value)


class KeyRule:
    """Rule for one or more config.json keys and the corresponding fields.

    A family can express a model only if its fields survive writing and reading.
    """

    def read(self, document: ConfigDocument, known: Fields) -> Fields:
        """Read the fields.

        Arguments:
            known: fields read by earlier rules.
        """
        return {}

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        """Write the keys."""
        return {}


SIZES: Final = (
    "max_sequence_length",
    "dim",
    "layers",
    "heads",
    "kv_heads",
    "head_dim",
    "ffn_dim",
    "rope_base",
    "norm_eps",
    "tie_embeddings",
)
"""Fields that every family writes."""

PLAIN: Final[Mapping[str, object]] = {
    "activation": "swiglu",
    "ffn_bias": False,
    "positions": "rotary",
    "rope_scaling": None,
    "rope_base_sliding": None,
    "rope_dim": None,
    "rope_pattern": (True,),
    "attention_pattern": ("full",),
    "sliding_window": None,
    "attention_chunk": None,
    "attention_scale": None,
    "attention_soft_cap": None,
    "attention_temperature": None,
    "logit_soft_cap": None,
    "qk_norm": False,
    "qk_norm_across_heads": False,
    "qk_norm_pattern": (True,),
    "qk_norm_weights": True,
    "qkv_bias": False,
    "attention_sinks": False,
    "attention_output_bias": False,
    "mla": None,
    "moe": None,
    "norm": RMSNormConfig(),
    "norm_placement": "pre",
    "mup": None,
    "embedding_scale": 1.0,
    "residual_scale": 1.0,
    "logit_scale": 1.0,
}
"""Default values of fields that affect the logits, for families without a rule for them."""

EXPERTS: Final[Mapping[str, object]] = {
    "moe.router": "softmax_top_k",
    "moe.router.normalize": True,
    "moe.every": 1,
    "moe.first_dense": 0,
    "moe.shared_experts": 0,
    "moe.shared_gate": False,
    "moe.bias": False,
    "moe.scale_inputs": False,
    "moe.route_scale": 1.0,
    "moe.groups": 1,
    "moe.top_groups": 1,
    "moe.capacity_factor": None,
}
"""Default values of fields of a mixture of experts."""

UNCOMPARED: Final = (
    "vocab_size",
    "init_std",
    "init_std_embedding",
    "init_std_output",
    "residual_init",
    "dropout",
    "attention_dropout",
    "embedding_dropout",
    "moe.balance_loss",
    "moe.sequence_balance_loss",
)
"""Fields with rules that do not affect the logits."""


@dataclass(frozen=True, kw_only=True)
class Family(TensorNames):
    """One `model_type` of transformers.

    Arguments:
        model_type, architecture: in config.json; the class has a language-model head.
        fixed: fields of `PLAIN` and `EXPERTS` that have a different value in all models of the
            family.
    """

    model_type: str
    architecture: str
    rules: tuple[KeyRule, ...]
    fixed: Mapping[str, object] = field(default_factory=dict[str, object])

    def read(self, document: ConfigDocument) -> Fields:
        """Read the fields of a config.json, by path."""
        fields = {**PLAIN, **(EXPERTS if "moe" in self.fixed else {}), **self.fixed}
        for rule in self.rules:
            fields |= rule.read(document, fields)
        return fields

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        """Write the config.json keys, except those that all families share."""
        return {key: value for rule in self.rules for key, value in rule.write(config).items()}

    def misfits(self, config: TransformerConfig) -> list[Misfit]:
        """List the fields that the family cannot express: those changed by writing and reading."""
        for section in ("moe", "mla"):  # their fields have rules
            if section in self.fixed and getattr(config, section) is None:
                return [Misfit(section, f"= null; it must be {self.fixed[section]}")]
        document = ConfigDocument({**self.write(config), "vocab_size": 1}, "")
        fields = self.read(document)
        misfits = [Misfit(*finding) for finding in document.findings]
        for path in fields.keys() - UNCOMPARED - without_effect(config):
            meaning, value = meaning_of(config, path), named(fields[path])
            if path == "attention_scale" and _same(value, query_size(config) ** -0.5):
                value = None
            if path in PATTERNS:
                value = _repeated(fields[path], config.layers)
            if not _same(meaning, value):
                text = f"= {shown(meaning)}; it must be {shown(value)}"
                misfits.append(Misfit(path, text))
        return sorted(misfits)


def without_effect(config: TransformerConfig) -> set[str]:
    """Fields that have no effect on the logits, given the others."""
    fields: set[str] = set()
    if config.positions != "rotary":
        fields |= {"rope_base"}
    if config.mla is not None:
        fields |= {"kv_heads", "head_dim"}
    if config.moe is not None and config.moe.layers_with_experts(config.layers) == config.layers:
        fields |= {"ffn_dim", "ffn_bias"}
    if "sliding" not in layer_kinds(config):
        fields |= {"sliding_window", "rope_base_sliding"}
    if "chunked" not in layer_kinds(config):
        fields |= {"attention_chunk"}
    return fields


def _same(left: object, right: object) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-12)
    return left == right


@dataclass(frozen=True)
class AnyKey(KeyRule):
    """A key for one field, or for several fields with equal values.

    Arguments:
        path: path of the field; several paths are separated by commas. Empty: the key has no effect
            in Setpoint.
        default: value if the key is absent.
        null: computes the field's value from earlier fields if the key is null; None: null is
            refused.
        get: computes the value to write; None: the field's.
        read_as, write_as: conversions between key and field.
    """

    name: str
    path: str = ""
    default: Any = REQUIRED
    null: Callable[[Fields], Any] | None = None
    get: Callable[[TransformerConfig], Any] | None = None
    read_as: Callable[[Any], Any] = lambda value: value
    write_as: Callable[[Any], Any] = lambda value: value

    def read(self, document: ConfigDocument, known: Fields) -> Fields:
        value = self.value(document)
        value = self.null(known) if value is None and self.null else self.read_as(value)
        return dict.fromkeys(self.path.split(","), value) if self.path else {}

    def value(self, document: ConfigDocument) -> Any:
        """Value of the key."""
        return document.value(self.name)

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        if not self.path:
            return {}
        path = self.path.partition(",")[0]
        value = value_at(config, path) if self.get is None else self.get(config)
        return {self.name: self.write_as(value)}

    @property
    def presence(self) -> dict[str, Any]:
        """Arguments of a `ConfigDocument` for absent or null keys."""
        given = {} if self.default is REQUIRED else {"default": self.default}
        return {**given, "optional": self.null is not None}


@dataclass(frozen=True)
class Int(AnyKey):
    """A key with an int.

    Arguments:
        other: an older name of the key, which may not contradict it.
    """

    at_least: int = 1
    other: str = ""

    def value(self, document: ConfigDocument) -> Any:
        name = self.other if self.other and document.has(self.other) else self.name
        known = document.value(self.name)
        if document.has(self.name) and known != document.value(name):
            document.refuse(name, f"contradicts {self.name}")
        return document.integer(name, at_least=self.at_least, **self.presence)


@dataclass(frozen=True)
class Number(AnyKey):
    """A key with a float.

    Arguments:
        positive: refuse zero and negative values.
    """

    positive: bool = False

    def value(self, document: ConfigDocument) -> Any:
        value = document.number(self.name, **self.presence)
        if self.positive and value is not None and value <= 0:
            document.refuse(self.name, "must be positive")
            return 1.0
        return value


@dataclass(frozen=True)
class Bool(AnyKey):
    """A key with a bool."""

    def value(self, document: ConfigDocument) -> Any:
        return document.flag(self.name, self.default)


@dataclass(frozen=True)
class OneOf(AnyKey):
    """A key with one of several strings.

    Arguments:
        words: field values by string; the first of several strings with one value is written.
    """

    words: Mapping[str, Any] = field(default_factory=lambda: GATED)

    def value(self, document: ConfigDocument) -> Any:
        return document.choice(self.name, self.default, self.words)

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        value = value_at(config, self.path)
        words = (word for word, meaning in self.words.items() if meaning == value)
        return {self.name: next(words, self.default)}


@dataclass(frozen=True)
class Must(KeyRule):
    """A key with a single supported meaning.

    Arguments:
        allowed: values of the key, or a field that it may repeat; the key may be absent.
        reason: for refusing other values.
        writes: write the first value, or that of the field.
    """

    name: str
    allowed: tuple[object, ...] | str
    reason: str
    writes: bool = False

    def read(self, document: ConfigDocument, known: Fields) -> Fields:
        allowed = self.allowed
        allowed = (None, known[allowed]) if isinstance(allowed, str) else allowed
        document.must_be(self.name, allowed, self.reason)
        return {}

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        if not self.writes:
            return {}
        allowed = self.allowed
        first = value_at(config, allowed) if isinstance(allowed, str) else allowed[0]
        return {self.name: first}


@dataclass(frozen=True)
class Derived(KeyRule):
    """A field without a key, which transformers derives from other keys."""

    path: str
    compute: Callable[[Fields], Any]

    def read(self, document: ConfigDocument, known: Fields) -> Fields:
        return {self.path: self.compute(known)}


class EvenHeads(KeyRule):
    """A width divisible by the number of heads, as some classes of transformers require."""

    def read(self, document: ConfigDocument, known: Fields) -> Fields:
        if known["dim"] % known["heads"] and not document.findings:
            document.refuse("num_attention_heads", f"must divide dim = {known['dim']}")
        return {}


class DenseLayers(AnyKey):
    """`mlp_only_layers`: the layers without experts, which must be the first ones."""

    def __init__(self) -> None:
        super().__init__("mlp_only_layers", "moe.first_dense", write_as=lambda n: list(range(n)))

    def value(self, document: ConfigDocument) -> Any:
        dense = document.value(self.name) or []
        numbers = isinstance(dense, list) and all(type(layer) is int for layer in dense)
        if not numbers or sorted(dense) != list(range(len(dense))):
            document.refuse(self.name, "only the first layers can be without experts, as in [0, 1]")
            return 0
        return len(dense)


class ExpertLayers(KeyRule):
    """`moe_layers`, or `interleave_moe_layer_step`: the layers with experts."""

    def read(self, document: ConfigDocument, known: Fields) -> Fields:
        every, layers = document.integer("interleave_moe_layer_step", 1), known["layers"]
        listed: Any = document.value("moe_layers")
        if listed is None:
            return {"moe.every": every, "moe.first_dense": 0}
        if isinstance(listed, list) and listed and all(type(layer) is int for layer in listed):
            first, *later = sorted({layer for layer in listed if 0 <= layer < layers})
            for step in (later[0] - first if later else first + 1, 1):
                for dense in (0, first):
                    repeated = [i for i in range(dense, layers) if (i + 1) % step == 0]
                    if repeated == [first, *later]:
                        return {"moe.every": step, "moe.first_dense": dense}
        document.refuse("moe_layers", "must be every n-th layer, from some layer on")
        return {}

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        assert config.moe is not None
        layers = [layer for layer in range(config.layers) if config.moe.has_experts(layer)]
        return {"moe_layers": layers, "interleave_moe_layer_step": config.moe.every}


@dataclass(frozen=True)
class Groups(KeyRule):
    """`n_group` and `topk_group`: group-limited routing.

    Arguments:
        groups, top_groups: values of absent keys.
        method: value of `topk_method` without which the keys have no effect; empty: none is
            required.
    """

    groups: int = 1
    top_groups: int = 1
    method: str = ""

    def read(self, document: ConfigDocument, known: Fields) -> Fields:
        groups = document.integer("n_group", self.groups, optional=True) or 1
        top_groups = document.integer("topk_group", self.top_groups, optional=True) or 1
        if self.method:
            words = {"greedy": "", self.method: self.method}
            limits = document.choice("topk_method", "greedy", words)
            # Groups are chosen by their best expert: the best k experts are in the best k groups.
            groups = groups if limits and top_groups < known["moe.top_k"] else 1
        # All groups are no limit.
        groups = groups if top_groups < groups else 1
        return {"moe.groups": groups, "moe.top_groups": top_groups if groups > 1 else 1}

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        assert config.moe is not None
        groups, top_groups = config.moe.groups, config.moe.top_groups
        method = {"topk_method": self.method if groups > 1 else "greedy"} if self.method else {}
        return {"n_group": groups, "topk_group": top_groups, **method}
