"""The supported model families, one table each.

To add one, list the rules for its keys, the names of its modules and the fixed fields. A test
compares its logits with those of transformers in both directions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from setpoint.model.attention.selection import query_size
from setpoint.model.config import LayerNormConfig, RMSNormConfig, TransformerConfig
from setpoint.model.pretrained.convert import (
    GATED,
    REQUIRED,
    UNGATED,
    AnyKey,
    Bool,
    DenseLayers,
    Derived,
    EvenHeads,
    ExpertLayers,
    Family,
    Fields,
    Groups,
    Int,
    KeyRule,
    Must,
    Number,
    OneOf,
    expert_width,
)
from setpoint.model.pretrained.positions import (
    Chunks,
    LatentRope,
    Rope,
    RopeByKind,
    RopeLayers,
    RotatedNorms,
    Temperature,
    Windows,
    all_alike,
    every_nth_full,
    first_layers_full,
    first_layers_sliding,
    gemma3_pattern,
    smollm3_pattern,
)
from setpoint.model.pretrained.weight_names import DECODER, QKV, HfModule, Names, fused

if TYPE_CHECKING:
    from setpoint.model.pretrained.convert import ConfigDocument


def decoder(
    *,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    length: int,
    eps: float = 1e-6,
    activation: str = "hidden_act",
    usual: str = "silu",
    words: Mapping[str, str] = GATED,
    tied: bool = False,
    latent: bool = False,
) -> tuple[KeyRule, ...]:
    """Rules shared by Llama and its descendants, except positions.

    Arguments:
        kv_heads, head_dim, length, eps, usual, tied: values of absent keys; None: the number of
            heads, and hidden_size / heads.
        activation: name of the activation key.
        words: values of the activation key.
        latent: for latent attention, where head_dim does not follow from the width.
    """
    heads: tuple[KeyRule, ...] = (
        Int("num_key_value_heads", "kv_heads", kv_heads, null=lambda known: known["heads"]),
        Int("head_dim", "head_dim", head_dim, null=lambda known: known["dim"] // known["heads"]),
    )
    if latent:
        heads = (
            Must("num_key_value_heads", "heads", "latent attention has no such heads", writes=True),
            AnyKey("head_dim"),  # it is qk_rope_head_dim
            AnyKey("qk_head_dim"),
        )
    return (
        Int("vocab_size", "vocab_size"),
        Int("hidden_size", "dim"),
        Int("num_attention_heads", "heads"),
        *heads,
        Int("max_position_embeddings", "max_sequence_length", length),
        Int("num_hidden_layers", "layers"),
        Int("intermediate_size", "ffn_dim"),
        OneOf(activation, "activation", usual, words=words),
        Number("rms_norm_eps", "norm_eps", eps),
        # Some classes accept at most 1, and it has no effect on existing weights.
        Number("initializer_range", "init_std", 0.02, write_as=lambda std: min(std, 1.0)),
        Derived("residual_init", lambda _: "plain"),
        Bool("tie_word_embeddings", "tie_embeddings", tied),
        Number("attention_dropout", "attention_dropout", 0.0, null=lambda _: 0.0),
    )


BIASES = Bool("attention_bias", "qkv_bias,attention_output_bias", False)
NO_BIAS = Must("attention_bias", (False,), "the model has no such biases", writes=True)
CAUSAL = Must(
    "use_bidirectional_attention", (False, None), "attention would not be causal", writes=True
)
ALL_ALIKE = Windows(all_alike, listed=False)
OWN_CODE = AnyKey("auto_map")  # of files older than the class in transformers
NO_ROUTER_LOGITS = Must("output_router_logits", (False, True, None), "", writes=True)


def inverse(value: float) -> float:
    """1 / value, without the rounding error for integers."""
    divisor = round(1 / value)
    return float(divisor) if math.isclose(divisor, 1 / value, rel_tol=1e-12) else 1 / value


def query_scale(config: TransformerConfig) -> float:
    """Softmax scale of attention."""
    scale = config.attention_scale
    return query_size(config) ** -0.5 if scale is None else scale


class SharedWidth(KeyRule):
    """`shared_expert_intermediate_size`: total width of the shared experts."""

    def read(self, document: ConfigDocument, known: Fields) -> Fields:
        width, name = known["moe.expert_dim"], "shared_expert_intermediate_size"
        shared = document.integer(name, 5632)
        if shared % width:
            document.refuse(name, f"must be a multiple of the width of an expert, {width}")
        return {"moe.shared_experts": max(1, shared // width)}

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        assert config.moe is not None
        width = config.moe.shared_experts * expert_width(config)
        return {"shared_expert_intermediate_size": width}


class OldActivation(KeyRule):
    """`hidden_act` of Gemma, which transformers ignores in favor of gelu_pytorch_tanh."""

    def read(self, document: ConfigDocument, known: Fields) -> Fields:
        old = document.value("hidden_act")
        if old not in (None, "gelu_pytorch_tanh") and not document.has("hidden_activation"):
            document.refuse(
                "hidden_act", "contradicts hidden_activation, gelu_pytorch_tanh if absent"
            )
        return {}


def gemma(length: int, cap: float | None) -> tuple[KeyRule, ...]:
    """Rules shared by Gemma 2 and 3, except windows and positions."""
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
        CAUSAL,
        BIASES,
        EvenHeads(),
        Derived("embedding_scale", lambda known: math.sqrt(known["dim"])),
        Number(
            "query_pre_attn_scalar",
            "attention_scale",
            256,
            get=query_scale,
            positive=True,
            read_as=lambda scalar: scalar**-0.5,
            write_as=lambda scale: round(scale**-2),
        ),
        Number("final_logit_softcapping", "logit_soft_cap", cap, null=lambda _: None),
    )


MLA_NAME: Final = "latent attention"
MOE: Final = "a mixture of experts"


def packed(name: str, *projections: str, interleaved: bool = False) -> Names:
    """Names of packed expert projections that are one tensor in the files."""
    modules = (f"feed_forward.experts.{projection}" for projection in projections)
    return fused(name, *modules, packed=True, interleaved=interleaved)


SANDWICH: Final[Names] = {
    **DECODER,
    "attention_output_norm": "post_attention_layernorm",
    "feed_forward_norm": "pre_feedforward_layernorm",
    "feed_forward_output_norm": "post_feedforward_layernorm",
}
"""Names with norms before and after attention and feed-forward."""
POST_NORMS: Final[Names] = {
    **DECODER,
    "attention_output_norm": "post_attention_layernorm",
    "feed_forward_output_norm": "post_feedforward_layernorm",
}
"""Names with norms only after attention and feed-forward."""
SHARED_NAMES: Final[Names] = {
    **DECODER,
    "feed_forward.shared.gate": "mlp.shared_experts.gate_proj",
    "feed_forward.shared.up": "mlp.shared_experts.up_proj",
    "feed_forward.shared.down": "mlp.shared_experts.down_proj",
}
CORRECTION: Final[Names] = {"feed_forward.router.bias": "mlp.gate.e_score_correction_bias"}
SIGMOID_NAMES: Final[Names] = {**SHARED_NAMES, **CORRECTION}
BEYOND: Final = (r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq", r"layers\.({beyond})\..*")
"""Surplus tensors of models with additional layers for speculative decoding."""

QWEN_EXPERTS: tuple[KeyRule, ...] = (
    Int("decoder_sparse_step", "moe.every", 1),
    DenseLayers(),
    Bool("norm_topk_prob", "moe.router.normalize", False),
    Number("router_aux_loss_coef", "moe.balance_loss", 0.001),
    NO_ROUTER_LOGITS,
)

LLAMA = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    rules=(*decoder(length=2048), Rope(), BIASES, Bool("mlp_bias", "ffn_bias", False), EvenHeads()),
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
        AnyKey("max_window_layers"),  # never read
        Windows(all_alike, switch="use_sliding_window", listed=False),
        # transformers 5 writes num_local_experts for the key that it and 4 call num_experts.
        Int("num_experts", "moe.experts", 128, other="num_local_experts"),
        Int("num_experts_per_tok", "moe.top_k", 8),
        Int("moe_intermediate_size", "moe.expert_dim", 768, get=expert_width),
        *QWEN_EXPERTS,
        # Keys of Qwen3-Coder that transformers does not read.
        Must("shared_expert_intermediate_size", (0, None), "the model has no shared experts"),
        Must("qkv_bias", (False, None), "biases are given by attention_bias"),
        Must("use_qk_norm", (True, None), "the model has norms of queries and keys"),
    ),
    fixed={"qk_norm": True, "moe": MOE},
)


EXPERTS_ONLY = Int("intermediate_size", "ffn_dim,moe.expert_dim", get=expert_width)
NO_JITTER = Must("router_jitter_noise", (0.0, 0), "router noise is not supported")

MIXTRAL = Family(
    model_type="mixtral",
    architecture="MixtralForCausalLM",
    rules=(
        *decoder(kv_heads=8, length=131_072, eps=1e-5),
        Rope(1_000_000.0),
        Windows(all_alike, default=None, listed=False),
        Int("num_local_experts", "moe.experts", 8),
        Int("num_experts_per_tok", "moe.top_k", 2),
        EXPERTS_ONLY,
        Number("router_aux_loss_coef", "moe.balance_loss", 0.001),
        NO_JITTER,
        NO_ROUTER_LOGITS,
    ),
    fixed={"moe": MOE},
    names={
        **DECODER,
        "feed_forward.router": "block_sparse_moe.gate",
        "feed_forward.experts.gate": "block_sparse_moe.experts.{}.w1",
        "feed_forward.experts.up": "block_sparse_moe.experts.{}.w3",
        "feed_forward.experts.down": "block_sparse_moe.experts.{}.w2",
    },
)

PHI3 = Family(
    model_type="phi3",
    architecture="Phi3ForCausalLM",
    rules=(
        *decoder(length=4096, eps=1e-5),
        Rope(fraction=1.0, stretches=False),
        Windows(all_alike, default=None, listed=False),
        OWN_CODE,
        AnyKey("original_max_position_embeddings"),  # of a refused scaling
        NO_BIAS,
        Number("resid_pdrop", "dropout", 0.0),
        Number("embd_pdrop", "embedding_dropout", 0.0),
    ),
    names={
        **DECODER,
        **fused("self_attn.qkv_proj", *QKV),
        **fused("mlp.gate_up_proj", "feed_forward.gate", "feed_forward.up"),
    },
)

GRANITE = Family(
    model_type="granite",
    architecture="GraniteForCausalLM",
    rules=(
        *decoder(length=2048),
        Rope(),
        BIASES,
        Bool("mlp_bias", "ffn_bias", False),
        Number("embedding_multiplier", "embedding_scale", 1.0, positive=True),
        Number("residual_multiplier", "residual_scale", 1.0, positive=True),
        Number("attention_multiplier", "attention_scale", 1.0, get=query_scale, positive=True),
        Number(
            "logits_scaling", "logit_scale", 1.0, read_as=inverse, write_as=inverse, positive=True
        ),
    ),
)

GEMMA = Family(
    model_type="gemma",
    architecture="GemmaForCausalLM",
    rules=(
        Must("hidden_activation", (None, "gelu_pytorch_tanh"), "transformers reads hidden_act"),
        *decoder(
            kv_heads=16,
            head_dim=256,
            length=8192,
            usual="gelu_pytorch_tanh",
            words={"gelu_pytorch_tanh": "geglu_tanh", "gelu": "geglu_tanh"},
            tied=True,
        ),
        Rope(),
        CAUSAL,
        BIASES,
        Derived("embedding_scale", lambda known: math.sqrt(known["dim"])),
    ),
    fixed={"norm": RMSNormConfig(zero_centered=True)},
)

SEQUENCE_LOSS: tuple[KeyRule, ...] = (
    Number("aux_loss_alpha", "moe.sequence_balance_loss", 0.0),
    Must("seq_aux", (True,), "only the loss per sequence is supported"),
    Derived("moe.balance_loss", lambda _: 0.0),
)
SIGMOID_EXPERTS: tuple[KeyRule, ...] = (
    AnyKey("num_nextn_predict_layers"),  # layers beyond the last, for speculation
    AnyKey("num_mtp_layers"),
    Int("num_experts_per_tok", "moe.top_k", 8),
    Bool("norm_topk_prob", "moe.router.normalize", True),
    Must("scoring_func", ("sigmoid",), "these models have sigmoid scores"),
    Must("topk_method", ("noaux_tc",), "these models select experts with a bias"),
    *SEQUENCE_LOSS,
    NO_ROUTER_LOGITS,
)
"""Rules of experts of DeepSeek V3."""
LATENT: Final = (
    Int("q_lora_rank", "mla.query_rank", 1536, null=lambda _: None),
    Int("kv_lora_rank", "mla.kv_rank", 512),
    Int("qk_rope_head_dim", "mla.rope_head_dim", 64),
    Int("qk_nope_head_dim", "mla.nope_head_dim", 128),
    Int("v_head_dim", "mla.value_head_dim", 128),
)
"""Rules of latent attention."""
DEEPSEEK: tuple[KeyRule, ...] = (
    Must("rms_norm_eps", (1e-6,), "must be 1e-06, the epsilon of the latent norms"),
    *LATENT,
    LatentRope(),
    NO_BIAS,
    OWN_CODE,
    AnyKey("ep_size"),
    Must("moe_layer_freq", (1,), "dense layers are given by first_k_dense_replace only"),
    Int("moe_intermediate_size", "moe.expert_dim", get=expert_width),
    Int("n_shared_experts", "moe.shared_experts"),
    Number("routed_scaling_factor", "moe.route_scale", positive=True),
    *SEQUENCE_LOSS,
    NO_ROUTER_LOGITS,
)
"""Rules shared by DeepSeek V2 and V3."""
DEEPSEEK_NAMES: Final[Names] = {
    **SHARED_NAMES,
    "attention.query_down": "self_attn.q_a_proj",
    "attention.query_down_norm": "self_attn.q_a_layernorm",
    "attention.query_up": "self_attn.q_b_proj",
    "attention.key_value_down": "self_attn.kv_a_proj_with_mqa",
    "attention.key_value_down_norm": "self_attn.kv_a_layernorm",
    "attention.key_value_up": "self_attn.kv_b_proj",
}

DEEPSEEK_V2 = Family(
    model_type="deepseek_v2",
    architecture="DeepseekV2ForCausalLM",
    rules=(
        *decoder(length=2048, latent=True),
        *DEEPSEEK,
        EvenHeads(),
        Int("n_routed_experts", "moe.experts", 64),
        Int("num_experts_per_tok", "moe.top_k", REQUIRED),
        Int("first_k_dense_replace", "moe.first_dense", 0, at_least=0),
        Groups(method="group_limited_greedy"),
        Must("scoring_func", ("softmax",), "these models have softmax scores"),
        Must("norm_topk_prob", (False,), "transformers does not normalize them", writes=True),
        Must("mlp_bias", (False,), "the model has no such biases"),
    ),
    fixed={"mla": MLA_NAME, "moe": MOE, "moe.router.normalize": False},
    names=DEEPSEEK_NAMES,
    interleaved=True,
)

DEEPSEEK_V3 = Family(
    model_type="deepseek_v3",
    architecture="DeepseekV3ForCausalLM",
    rules=(
        *decoder(length=4096, latent=True),
        *DEEPSEEK,
        Int("n_routed_experts", "moe.experts", 256, other="num_local_experts"),
        Int("first_k_dense_replace", "moe.first_dense", 3, at_least=0),
        Groups(8, 4),
        *SIGMOID_EXPERTS,
        Must("rope_interleave", (True,), "rotated pairs are adjacent", writes=True),
    ),
    fixed={"mla": MLA_NAME, "moe": MOE, "moe.router": "sigmoid_top_k"},
    names={**DEEPSEEK_NAMES, **CORRECTION},
    surplus=BEYOND,
    interleaved=True,
)

QWEN2_MOE = Family(
    model_type="qwen2_moe",
    architecture="Qwen2MoeForCausalLM",
    rules=(
        *decoder(kv_heads=16, length=32_768),
        Rope(),
        Windows(first_layers_sliding, switch="use_sliding_window"),
        Bool("qkv_bias", "qkv_bias", True),
        Int("num_experts", "moe.experts", 60),
        Int("num_experts_per_tok", "moe.top_k", 4),
        Int("moe_intermediate_size", "moe.expert_dim", 1408, get=expert_width),
        SharedWidth(),
        *QWEN_EXPERTS,
    ),
    fixed={"moe": MOE, "moe.shared_gate": True},
    names={
        **DECODER,
        "feed_forward.shared_gate": "mlp.shared_expert_gate",
        "feed_forward.shared.gate": "mlp.shared_expert.gate_proj",
        "feed_forward.shared.up": "mlp.shared_expert.up_proj",
        "feed_forward.shared.down": "mlp.shared_expert.down_proj",
    },
)

OLMO2 = Family(
    model_type="olmo2",
    architecture="Olmo2ForCausalLM",
    rules=(*decoder(length=2048, eps=1e-5), Rope(), BIASES),
    fixed={"qk_norm": True, "qk_norm_across_heads": True, "norm_placement": "post"},
    names=POST_NORMS,
)

OLMO3 = Family(
    model_type="olmo3",
    architecture="Olmo3ForCausalLM",
    rules=(
        *decoder(length=2048, eps=1e-5),
        Windows(every_nth_full(4), always=True),
        RopeByKind(500_000.0),
        BIASES,
    ),
    fixed={"qk_norm": True, "qk_norm_across_heads": True, "norm_placement": "post"},
    names=POST_NORMS,
)

OLMOE = Family(
    model_type="olmoe",
    architecture="OlmoeForCausalLM",
    rules=(
        *decoder(length=4096, eps=1e-5),
        Rope(),
        BIASES,
        EvenHeads(),
        Must("clip_qkv", (None,), "clipping of queries, keys and values is not supported"),
        Int("num_experts", "moe.experts", 64, other="num_local_experts"),
        Int("num_experts_per_tok", "moe.top_k", 8),
        EXPERTS_ONLY,
        Bool("norm_topk_prob", "moe.router.normalize", False),
        Number("router_aux_loss_coef", "moe.balance_loss", 0.01),
        NO_ROUTER_LOGITS,
    ),
    fixed={"qk_norm": True, "qk_norm_across_heads": True, "moe": MOE},
)

SMOLLM3 = Family(
    model_type="smollm3",
    architecture="SmolLM3ForCausalLM",
    rules=(
        *decoder(kv_heads=4, length=32_768, tied=True),
        Rope(2_000_000.0),
        RopeLayers(),
        AnyKey("max_window_layers"),  # never read
        Windows(smollm3_pattern, default=None, switch="use_sliding_window"),
        BIASES,
        Bool("mlp_bias", "ffn_bias", False),
    ),
)

GLM: tuple[KeyRule, ...] = (
    *decoder(kv_heads=2, head_dim=128, length=131_072, eps=1.5625e-7),
    Rope(fraction=0.5),
    Bool("attention_bias", "qkv_bias", True),
)
"""Rules of GLM 4 without experts."""
GLM_NAMES: Final[Names] = {
    **DECODER,
    **fused("mlp.gate_up_proj", "feed_forward.gate", "feed_forward.up"),
}

GLM4_9B = Family(
    model_type="glm", architecture="GlmForCausalLM", rules=GLM, names=GLM_NAMES, interleaved=True
)

GLM4 = Family(
    model_type="glm4",
    architecture="Glm4ForCausalLM",
    rules=GLM,
    fixed={"norm_placement": "both"},
    names={
        **GLM_NAMES,
        "attention_output_norm": "post_self_attn_layernorm",
        "feed_forward_output_norm": "post_mlp_layernorm",
    },
    interleaved=True,
)

GLM4_MOE = Family(
    model_type="glm4_moe",
    architecture="Glm4MoeForCausalLM",
    rules=(
        *decoder(kv_heads=8, length=131_072, eps=1e-5),
        Rope(fraction=0.5),
        Bool("attention_bias", "qkv_bias", False),
        Bool("use_qk_norm", "qk_norm", False),
        Groups(),
        *SIGMOID_EXPERTS,
        Int("n_routed_experts", "moe.experts", 128, other="num_local_experts"),
        Int("moe_intermediate_size", "moe.expert_dim", 1408, get=expert_width),
        Int("n_shared_experts", "moe.shared_experts", 1),
        Number("routed_scaling_factor", "moe.route_scale", 1.0, positive=True),
        Int("first_k_dense_replace", "moe.first_dense", 1, at_least=0),
    ),
    fixed={"moe": MOE, "moe.router": "sigmoid_top_k"},
    names=SIGMOID_NAMES,
    surplus=BEYOND,
)

GPT_OSS = Family(
    model_type="gpt_oss",
    architecture="GptOssForCausalLM",
    rules=(
        *decoder(
            kv_heads=8, head_dim=64, length=131_072, eps=1e-5, words={"silu": "swiglu_clamped"}
        ),
        Must("swiglu_limit", (7.0,), "projections are clamped at 7", writes=True),
        Must("swiglu_alpha", (1.702,), "the sigmoid takes 1.702 x", writes=True),
        Rope(
            150_000.0,
            scaling={
                "rope_type": "yarn",
                "factor": 32.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 4096,
            },
        ),
        AnyKey("initial_context_length"),  # it is that of the scaling
        Windows(every_nth_full(2), default=128, always=True),
        Bool("attention_bias", "qkv_bias,attention_output_bias", True),
        Int("num_local_experts", "moe.experts", 128, other="num_experts"),
        Int("num_experts_per_tok", "moe.top_k", 4),
        AnyKey("experts_per_token"),  # the same
        EXPERTS_ONLY,
        Number("router_aux_loss_coef", "moe.balance_loss", 0.001),
        NO_ROUTER_LOGITS,
    ),
    fixed={"attention_sinks": True, "moe": MOE, "moe.bias": True},
    names={
        **DECODER,
        "attention.sinks": "self_attn.sinks",
        "feed_forward.router": "mlp.router",
        "feed_forward.router.logit_bias": "mlp.router.bias",
        **packed("mlp.experts.gate_up_proj", "gate", "up", interleaved=True),
        **packed("mlp.experts.down_proj", "down"),
        **packed("mlp.experts.gate_up_proj_bias", "gate_bias", "up_bias", interleaved=True),
        **packed("mlp.experts.down_proj_bias", "down_bias"),
    },
)

LLAMA4 = Family(
    model_type="llama4_text",
    architecture="Llama4ForCausalLM",
    rules=(
        *decoder(kv_heads=8, head_dim=128, length=131_072, eps=1e-5),
        Int("intermediate_size_mlp", "ffn_dim", 16_384),
        Int("intermediate_size", "moe.expert_dim", 8192, get=expert_width),
        Rope(500_000.0),
        RopeLayers(),
        Chunks(),
        RotatedNorms(),
        Temperature(),
        BIASES,
        Int("num_local_experts", "moe.experts", 16),
        Int("num_experts_per_tok", "moe.top_k", 1),
        ExpertLayers(),
        Number("router_aux_loss_coef", "moe.balance_loss", 0.001),
        NO_JITTER,
        NO_ROUTER_LOGITS,
        AnyKey("for_llm_compression"),  # never read
    ),
    fixed={
        "moe": MOE,
        "moe.router": "sigmoid_top_k without bias",
        "moe.router.normalize": False,
        "moe.scale_inputs": True,
        "moe.shared_experts": 1,
    },
    names={
        **DECODER,
        "feed_forward.gate": "feed_forward.gate_proj",
        "feed_forward.up": "feed_forward.up_proj",
        "feed_forward.down": "feed_forward.down_proj",
        "feed_forward.router": "feed_forward.router",
        "feed_forward.shared.gate": "feed_forward.shared_expert.gate_proj",
        "feed_forward.shared.up": "feed_forward.shared_expert.up_proj",
        "feed_forward.shared.down": "feed_forward.shared_expert.down_proj",
        **packed("feed_forward.experts.gate_up_proj", "gate", "up"),
        **packed("feed_forward.experts.down_proj", "down"),
    },
    interleaved=True,
)

GEMMA2 = Family(
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    rules=(
        *gemma(length=8192, cap=30.0),
        Rope(),
        Windows(every_nth_full(2), always=True),
        AnyKey("sliding_window_size"),  # never read
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
        Must("scale_attn_by_inverse_layer_idx", (False,), "a scale per layer is not supported"),
        AnyKey("reorder_and_upcast_attn"),  # the order of two products, and the precision of a sum
        *(
            AnyKey(f"summary_{name}")
            for name in ("type", "use_proj", "activation", "proj_to_labels", "first_dropout")
        ),
        AnyKey("n_special"),  # of the larger models, for another task
        AnyKey("predict_special_tokens"),
        Int("n_layer", "layers"),
        Derived("kv_heads", lambda known: known["heads"]),
        Derived("head_dim", lambda known: known["dim"] // known["heads"]),
        EvenHeads(),
        Int("n_inner", "ffn_dim", None, null=lambda known: 4 * known["dim"]),
        OneOf("activation_function", "activation", "gelu_new", words=UNGATED),
        Number("layer_norm_epsilon", "norm_eps", 1e-5),
        Number("initializer_range", "init_std", 0.02),
        Bool("tie_word_embeddings", "tie_embeddings", True),
        Bool(
            "scale_attn_weights",
            "attention_scale",
            True,
            read_as=lambda usual: None if usual else 1.0,
            write_as=lambda scale: scale != 1.0,
        ),
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
        "attention.output": HfModule("attn.c_proj", transposed=True),
        "feed_forward.up": HfModule("mlp.c_fc", transposed=True),
        "feed_forward.down": HfModule("mlp.c_proj", transposed=True),
        "norm": "ln_f",
        "output": "lm_head",
    },
    layer="transformer.h.{}",
    surplus=(r"h\.\d+\.attn\.(bias|masked_bias)",),  # the causal mask, saved by the first version
)

FAMILIES: Final = {
    family.model_type: family
    for family in (
        LLAMA,
        MISTRAL,
        QWEN2,
        QWEN3,
        GRANITE,
        PHI3,
        QWEN3_MOE,
        MIXTRAL,
        DEEPSEEK_V2,
        DEEPSEEK_V3,
        GEMMA,
        GEMMA2,
        GEMMA3,
        GPT2,
        QWEN2_MOE,
        OLMO2,
        OLMO3,
        OLMOE,
        SMOLLM3,
        GLM4_9B,
        GLM4,
        GLM4_MOE,
        GPT_OSS,
        LLAMA4,
    )
}
"""Families by `model_type`, the simplest first: a model is exported as the first that fits."""
