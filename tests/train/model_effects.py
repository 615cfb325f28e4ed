"""What each field of a model changes: rows of the table in test_config_effects.py.

Each row has the change, what shows it (a function of that file, by its name), and what is set on
both sides.
"""

from __future__ import annotations

SLIDING = ('model.attention_pattern=["sliding"]', "model.sliding_window=4")
BOTH_KINDS = (
    "model.layers=2",
    'model.attention_pattern=["full", "sliding"]',
    "model.sliding_window=4",
)
MUP = ("model.mup.base_dim=4",)
LAYER_NORM = ("model.norm=layer_norm",)
TORCH_NORM = ("model.norm={type=import, target=torch.nn.LayerNorm}",)
WIDTHS = "kv_rank=6, rope_head_dim=4, nope_head_dim=4, value_head_dim=4"
LATENT = (f"model.mla={{{WIDTHS}}}",)
LINEAR = ("model.rope_scaling={type=linear, factor=2}",)
LLAMA3 = ("model.rope_scaling={type=llama3, factor=2, original_length=100}",)
YARN = ("model.rope_scaling={type=yarn, factor=8, original_length=32}", "model.rope_base=20")

ROWS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "TransformerConfig.ffn_multiplier": ("model.ffn_multiplier=2", "weights", ()),
    "TransformerConfig.activation": ("model.activation=gelu", "weights", ()),
    "TransformerConfig.ffn_bias": ("model.ffn_bias=true", "weights", ()),
    "TransformerConfig.positions": ("model.positions=none", "logits", ()),
    "TransformerConfig.rope_base_sliding": ("model.rope_base_sliding=50", "logits", SLIDING),
    "TransformerConfig.rope_scaling": (LINEAR[0], "logits", ()),
    "TransformerConfig.rope_dim": ("model.rope_dim=2", "logits", ()),
    "TransformerConfig.rope_pattern": (
        "model.rope_pattern=[true, false]",
        "logits",
        ("model.layers=2",),
    ),
    "TransformerConfig.attention_pattern": (
        'model.attention_pattern=["sliding", "full"]',
        "logits",
        BOTH_KINDS,
    ),
    "TransformerConfig.sliding_window": ("model.sliding_window=3", "logits", SLIDING),
    "TransformerConfig.attention_scale": ("model.attention_scale=0.1", "logits", ()),
    "TransformerConfig.attention_soft_cap": ("model.attention_soft_cap=0.5", "logits", ()),
    "TransformerConfig.logit_soft_cap": ("model.logit_soft_cap=0.5", "logits", ()),
    "TransformerConfig.qk_norm": ("model.qk_norm=true", "weights", ()),
    "TransformerConfig.qk_norm_across_heads": (
        "model.qk_norm_across_heads=true",
        "weights",
        ("model.qk_norm=true",),
    ),
    "TransformerConfig.qkv_bias": ("model.qkv_bias=true", "weights", ()),
    "TransformerConfig.attention_output_bias": ("model.attention_output_bias=true", "weights", ()),
    "TransformerConfig.attention_sinks": ("model.attention_sinks=true", "weights", ()),
    "TransformerConfig.merge_qkv": ("model.merge_qkv=true", "weights", ()),
    "TransformerConfig.attention_backend": ("model.attention_backend=eager", "backend", ()),
    "TransformerConfig.mla": (LATENT[0], "weights", ()),
    "TransformerConfig.norm": (LAYER_NORM[0], "weights", ()),
    "TransformerConfig.norm_placement": ("model.norm_placement=post", "weights", ()),
    "TransformerConfig.residual_init": ("model.residual_init=plain", "weights", ()),
    "TransformerConfig.mup": (MUP[0], "weights", ()),
    "TransformerConfig.vocab_size": ("model.vocab_size=300", "weights", ()),
    "TransformerConfig.vocab_multiple_of": ("model.vocab_multiple_of=64", "weights", ()),
    "TransformerConfig.embedding_scale": ("model.embedding_scale=2", "logits", ()),
    "TransformerConfig.residual_scale": ("model.residual_scale=0.5", "logits", ()),
    "TransformerConfig.logit_scale": ("model.logit_scale=0.5", "logits", ()),
    "TransformerConfig.attention_dropout": ("model.attention_dropout=0.5", "learned", ()),
    "TransformerConfig.embedding_dropout": ("model.embedding_dropout=0.5", "learned", ()),
    "MuP.base_dim": ("model.mup.base_dim=8", "learned", MUP),
    "MuP.base_head_dim": ("model.mup.base_head_dim=2", "logits", MUP),
    "RMSNormConfig.zero_centered": ("model.norm.zero_centered=true", "weights", ()),
    "LayerNormConfig.bias": ("model.norm.bias=false", "weights", LAYER_NORM),
    "ImportedNorm.target": ("model.norm.target=torch.nn.RMSNorm", "weights", TORCH_NORM),
    "MLA.query_rank": ("model.mla.query_rank=5", "weights", LATENT),
    "MLA.kv_rank": ("model.mla.kv_rank=5", "weights", LATENT),
    "MLA.rope_head_dim": ("model.mla.rope_head_dim=6", "weights", LATENT),
    "MLA.nope_head_dim": ("model.mla.nope_head_dim=5", "weights", LATENT),
    "MLA.value_head_dim": ("model.mla.value_head_dim=5", "weights", LATENT),
    "LinearScaling.factor": ("model.rope_scaling.factor=3", "logits", LINEAR),
    "Llama3Scaling.factor": ("model.rope_scaling.factor=3", "logits", LLAMA3),
    "Llama3Scaling.low_frequency_factor": (
        "model.rope_scaling.low_frequency_factor=2",
        "logits",
        LLAMA3,
    ),
    "Llama3Scaling.high_frequency_factor": (
        "model.rope_scaling.high_frequency_factor=20",
        "logits",
        LLAMA3,
    ),
    "Llama3Scaling.original_length": ("model.rope_scaling.original_length=16", "logits", LLAMA3),
    "YarnScaling.factor": ("model.rope_scaling.factor=3", "logits", YARN),
    "YarnScaling.original_length": ("model.rope_scaling.original_length=8", "logits", YARN),
    "YarnScaling.beta_fast": ("model.rope_scaling.beta_fast=1.5", "logits", YARN),
    "YarnScaling.beta_slow": ("model.rope_scaling.beta_slow=2.5", "logits", YARN),
    "YarnScaling.attention_factor": ("model.rope_scaling.attention_factor=2", "logits", YARN),
    "YarnScaling.truncate": ("model.rope_scaling.truncate=false", "logits", YARN),
}
