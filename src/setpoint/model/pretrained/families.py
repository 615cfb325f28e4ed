"""The families of models that are read and written, a table each.

To add one: the rules for its keys, the names of its modules, and the fields that are fixed. A test
compares its logits with those of transformers, both ways.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from setpoint.model.config import LayerNormConfig, RMSNormConfig, TransformerConfig
from setpoint.model.pretrained.convert import (
    UNGATED,
    Choice,
    Chosen,
    Computed,
    DenseLayers,
    EvenHeads,
    Fields,
    Flag,
    Int,
    Key,
    Misfit,
    Must,
    Number,
    PlainInit,
    QueryScalar,
    Rope,
    RopeByKind,
    Rule,
    Windows,
    all_alike,
    every_nth_full,
    meaning_of,
    named,
    shown,
)
from setpoint.model.pretrained.weights import (
    DECODER,
    QKV,
    Names,
    Piece,
    Theirs,
    fused,
    pieces_of_family,
)

if TYPE_CHECKING:
    from setpoint.model.pretrained.document import Document

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
    "attention_pattern": ("full",),
    "sliding_window": None,
    "attention_scale": None,
    "attention_soft_cap": None,
    "logit_soft_cap": None,
    "qk_norm": False,
    "qkv_bias": False,
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
"""Values of the fields that change the logits, for a family without a rule for them."""

EXPERTS: Final[Mapping[str, object]] = {
    "moe.router": "softmax_top_k",
    "moe.router.normalize": True,
    "moe.every": 1,
    "moe.first_dense": 0,
    "moe.shared_experts": 0,
    "moe.route_scale": 1.0,
    "moe.groups": 1,
    "moe.top_groups": 1,
    "moe.capacity_factor": None,
}
"""The same of fields of a mixture of experts."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """One `model_type` of transformers.

    Arguments:
        model_type, architecture: in config.json; the class has the head of a language model.
        fixed: fields of `PLAIN` and `EXPERTS` with another value in all models of the family.
        names: modules of theirs by those of ours.
        layer: name of a layer.
        surplus: patterns of names of tensors, without the base, that files may hold and that are
            not needed; `{beyond}` stands for the numbers of layers beyond the last.
        interleaved: see `pieces_of_family`.
    """

    model_type: str
    architecture: str
    rules: tuple[Rule, ...]
    fixed: Mapping[str, object] = field(default_factory=dict[str, object])
    names: Names = field(default_factory=lambda: DECODER)
    layer: str = "model.layers.{}"
    surplus: tuple[str, ...] = (r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",)
    interleaved: bool = False

    @property
    def base(self) -> str:
        """Beginning of the names of all tensors but the head's."""
        return f"{self.layer.partition('.')[0]}."

    @property
    def written(self) -> frozenset[str]:
        """Fields that have a rule."""
        return frozenset(path for rule in self.rules for path in rule.fields)

    def read(self, document: Document) -> Fields:
        """Read the fields of a config.json, by their paths."""
        fields = dict(self.fixed)
        for rule in self.rules:
            fields |= rule.read(document, fields)
        return fields

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        """Write the keys of a config.json but for those that all families have."""
        return {key: value for rule in self.rules for key, value in rule.write(config).items()}

    def misfits(self, config: TransformerConfig) -> Iterator[Misfit]:
        """Find what the family cannot express."""
        wanted = {**PLAIN, **(EXPERTS if "moe" in self.fixed else {}), **self.fixed}
        written, absent = self.written, False
        for path, value in wanted.items():
            section = path.partition(".")[0]
            if path in written or (section != path and getattr(config, section) is None):
                continue
            if (meaning := meaning_of(config, path)) != named(value):
                absent |= path in ("moe", "mla")
                yield Misfit(path, shown(meaning), shown(named(value)))
        if not absent:  # else some rules have no field
            for rule in self.rules:
                yield from rule.misfits(config)

    def pieces(self, config: TransformerConfig) -> list[Piece]:
        """List how tensors of theirs and ours are made of each other."""
        return pieces_of_family(config, self.names, self.layer, self.interleaved)

    def surplus_of(self, config: TransformerConfig) -> list[str]:
        """Patterns of names of tensors that are passed over, with the base or without."""
        beyond = "|".join(str(config.layers + index) for index in range(8))
        patterns = [pattern.replace("{beyond}", beyond) for pattern in self.surplus]
        return [f"({re.escape(self.base)})?{pattern}" for pattern in patterns]


def decoder(
    *,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    length: int,
    eps: float = 1e-6,
    activation: str = "hidden_act",
    usual: str = "silu",
    tied: bool = False,
) -> tuple[Rule, ...]:
    """Rules that Llama and those after it have in common, but for positions.

    Arguments:
        kv_heads, head_dim, length, eps, usual, tied: values of absent keys; None: as many as heads,
            hidden_size / heads.
        activation: name of its key.
    """
    return (
        Int("vocab_size", "vocab_size"),
        Int("hidden_size", "dim"),
        Int("num_attention_heads", "heads"),
        Int("num_key_value_heads", "kv_heads", kv_heads, null=lambda known: known["heads"]),
        Int("head_dim", "head_dim", head_dim, null=lambda known: known["dim"] // known["heads"]),
        Int("max_position_embeddings", "max_sequence_length", length),
        Int("num_hidden_layers", "layers"),
        Int("intermediate_size", "ffn_dim"),
        Choice(activation, "activation", usual),
        Number("rms_norm_eps", "norm_eps", eps),
        # Some classes take no more than 1, and it has no effect on weights that are there.
        Number("initializer_range", "init_std", 0.02, write_as=lambda std: min(std, 1.0)),
        PlainInit(),
        Flag("tie_word_embeddings", "tie_embeddings", tied),
        Number("attention_dropout", "attention_dropout", 0.0, null=lambda _: 0.0),
    )


BIASES = Flag("attention_bias", "qkv_bias,attention_output_bias", False)
ALL_ALIKE = Windows(all_alike, listed=False)
NO_ROUTER_LOGITS = Must("output_router_logits", (False, True, None), "", writes=True)


def first_layers_full(document: Document, layers: int, window: int | None) -> list[str]:
    """The attention types of Qwen 2 and 3, whose upper layers slide."""
    first = document.integer("max_window_layers", 28, at_least=0)
    return ["sliding" if window and index >= first else "full" for index in range(layers)]


def gemma3_pattern(document: Document, layers: int, window: int | None) -> list[str]:
    """The attention types of Gemma 3, of which every n-th layer is full."""
    name, older = "_sliding_window_pattern", "sliding_window_pattern"
    every = document.integer(older if document.has(older) else name, 6)
    for unread in (name, older):
        document.value(unread)
    return list(every_nth_full(every)(document, layers, window))


def expert_width(config: TransformerConfig) -> int:
    """The width of an expert."""
    assert config.moe is not None
    return config.moe.width(config.ffn_dim)


class UnscaledAttention(Rule):
    """`scale_attn_weights` of GPT-2: whether attention has its usual scale, or none."""

    fields = ("attention_scale",)

    def read(self, document: Document, known: Fields) -> Fields:
        return {"attention_scale": None if document.flag("scale_attn_weights", True) else 1.0}

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        return {"scale_attn_weights": config.attention_scale != 1.0}

    def misfits(self, config: TransformerConfig) -> Iterator[Misfit]:
        scale = meaning_of(config, "attention_scale")
        if scale not in (None, 1.0):
            yield Misfit("attention_scale", f"{scale:g}", "null or 1")


class OldActivation(Rule):
    """`hidden_act` of Gemma, which transformers does not read: it takes gelu_pytorch_tanh."""

    def read(self, document: Document, known: Fields) -> Fields:
        old = document.value("hidden_act")
        if old not in (None, "gelu_pytorch_tanh") and not document.has("hidden_activation"):
            document.refuse(
                "hidden_act", "contradicts hidden_activation, gelu_pytorch_tanh if absent"
            )
        return {}


def gemma(length: int, cap: float | None) -> tuple[Rule, ...]:
    """Rules that Gemma 2 and 3 have in common, but for windows and positions."""
    return (
        OldActivation(),
        *decoder(
            kv_heads=4,
            head_dim=256,
            length=length,
            activation="hidden_activation",
            usual="gelu_pytorch_tanh",
            tied=True,
        ),
        Must(
            "use_bidirectional_attention",
            (False, None),
            "positions would see what comes after them",
            writes=True,
        ),
        BIASES,
        EvenHeads(),
        Computed("embedding_scale", lambda known: math.sqrt(known["dim"]), "sqrt(dim)"),
        QueryScalar(),
        Number("final_logit_softcapping", "logit_soft_cap", cap, null=lambda _: None),
    )


MOE: Final = "a mixture of experts"
SANDWICH: Final[Names] = {
    **DECODER,
    "attention_output_norm": "post_attention_layernorm",
    "feed_forward_norm": "pre_feedforward_layernorm",
    "feed_forward_output_norm": "post_feedforward_layernorm",
}
"""Names where norms stand before and after attention and feed-forward."""

LLAMA = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    rules=(*decoder(length=2048), Rope(), BIASES, Flag("mlp_bias", "ffn_bias", False), EvenHeads()),
)

MISTRAL = Family(
    model_type="mistral",
    architecture="MistralForCausalLM",
    rules=(*decoder(kv_heads=8, length=131_072), Rope(), ALL_ALIKE),
)

QWEN2 = Family(
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    rules=(
        *decoder(kv_heads=32, length=32_768),
        Rope(),
        Windows(first_layers_full, switch="use_sliding_window", first=True),
    ),
    fixed={"qkv_bias": True},
)

QWEN3 = Family(
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    rules=(
        *decoder(kv_heads=32, head_dim=128, length=32_768),
        Rope(),
        Windows(first_layers_full, switch="use_sliding_window", first=True),
        BIASES,
    ),
    fixed={"qk_norm": True},
)

QWEN3_MOE = Family(
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    rules=(
        *decoder(kv_heads=4, length=32_768),
        Rope(),
        BIASES,
        Key("max_window_layers"),  # which nothing reads
        Windows(all_alike, switch="use_sliding_window", listed=False),
        # transformers 5 writes num_local_experts for what it and 4 call num_experts.
        Int("num_experts", "moe.experts", 128, other="num_local_experts"),
        Chosen(8),
        Int("decoder_sparse_step", "moe.every", 1),
        DenseLayers(),
        Int("moe_intermediate_size", "moe.expert_dim", 768, get=expert_width),
        Flag("norm_topk_prob", "moe.router.normalize", False),
        Number("router_aux_loss_coef", "moe.balance_loss", 0.001),
        NO_ROUTER_LOGITS,
    ),
    fixed={"qk_norm": True, "moe": MOE},
)

GEMMA2 = Family(
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    rules=(
        *gemma(length=8192, cap=30.0),
        Rope(),
        Windows(every_nth_full(2), always=True),
        Number("attn_logit_softcapping", "attention_soft_cap", 50.0, null=lambda _: None),
    ),
    fixed={"norm": RMSNormConfig(zero_centered=True), "norm_placement": "both"},
    names=SANDWICH,
)

GEMMA3 = Family(
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    rules=(
        *gemma(length=131_072, cap=None),
        Must(
            "attn_logit_softcapping",
            (None,),
            "transformers does not apply it in Gemma 3",
            writes=True,
        ),
        Windows(gemma3_pattern, always=True),
        RopeByKind(1_000_000.0, sliding=10_000.0, local="rope_local_base_freq"),
    ),
    fixed={"norm": RMSNormConfig(zero_centered=True), "norm_placement": "both", "qk_norm": True},
    names=SANDWICH,
)

GPT2 = Family(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    rules=(
        Int("vocab_size", "vocab_size"),
        Int("n_embd", "dim"),
        Int("n_head", "heads"),
        Int("n_positions", "max_sequence_length", 1024),
        Must("n_ctx", "max_sequence_length", "contradicts n_positions"),  # its old name
        Must("scale_attn_by_inverse_layer_idx", (False,), "scales each layer differently"),
        Key("reorder_and_upcast_attn"),  # the order of two products, and the precision of a sum
        *(
            Key(f"summary_{name}")
            for name in ("type", "use_proj", "activation", "proj_to_labels", "first_dropout")
        ),
        Int("n_layer", "layers"),
        Computed("kv_heads", lambda known: known["heads"], "heads"),
        Computed("head_dim", lambda known: known["dim"] // known["heads"], "dim / heads"),
        EvenHeads(),
        Int("n_inner", "ffn_dim", None, null=lambda known: 4 * known["dim"]),
        Choice("activation_function", "activation", "gelu_new", words=UNGATED),
        Number("layer_norm_epsilon", "norm_eps", 1e-5),
        Number("initializer_range", "init_std", 0.02),
        Flag("tie_word_embeddings", "tie_embeddings", True),
        UnscaledAttention(),
        Number("resid_pdrop", "dropout", 0.1),
        Number("attn_pdrop", "attention_dropout", 0.1),
        Number("embd_pdrop", "embedding_dropout", 0.1),
    ),
    fixed={
        "positions": "learned",
        "norm": LayerNormConfig(bias=True),
        "ffn_bias": True,
        "qkv_bias": True,
        "attention_output_bias": True,
    },
    names={
        "embedding": "wte",
        "position_embedding": "wpe",
        "attention_norm": "ln_1",
        "feed_forward_norm": "ln_2",
        **fused("attn.c_attn", *QKV, transposed=True),
        "attention.output": Theirs("attn.c_proj", transposed=True),
        "feed_forward.up": Theirs("mlp.c_fc", transposed=True),
        "feed_forward.down": Theirs("mlp.c_proj", transposed=True),
        "norm": "ln_f",
        "output": "lm_head",
    },
    layer="transformer.h.{}",
    surplus=(
        r"h\.\d+\.attn\.(bias|masked_bias)",
    ),  # the causal mask, which the first version saved
)

FAMILIES: Final = {
    family.model_type: family
    for family in (LLAMA, MISTRAL, QWEN2, QWEN3, QWEN3_MOE, GEMMA2, GEMMA3, GPT2)
}
"""By `model_type`; the plainest first, since a model is exported as the first that can be it."""
