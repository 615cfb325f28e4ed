"""The architectures that are published, small: between them they hold every kind of layer."""

from typing import Any

from setpoint.model.attention.config import MLA, AttentionTemperature
from setpoint.model.config import LayerNormConfig, RMSNormConfig
from setpoint.model.moe.config import MoE, SigmoidTopK


def sparse(**moe: Any) -> dict[str, Any]:
    return {"qk_norm": True, "moe": MoE(experts=4, router_z_loss=0.1, **moe)}


# Changes to `small_config`.
DENSE: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"qk_norm": True, "tie_embeddings": True, "head_dim": 8},
    "gemma3": {
        "attention_pattern": ("sliding", "full"),
        "sliding_window": 4,
        "rope_base_sliding": 20.0,
        "norm": RMSNormConfig(zero_centered=True),
        "norm_placement": "both",
        "activation": "geglu_tanh",
        "attention_soft_cap": 4.0,
        "logit_soft_cap": 3.0,
        "embedding_scale": 4.9,
        "tie_embeddings": True,
    },
    "gpt2": {
        "kv_heads": 6,
        "norm": LayerNormConfig(),
        "positions": "learned",
        "activation": "gelu_tanh",
        "ffn_bias": True,
        "qkv_bias": True,
        "attention_output_bias": True,
        "tie_embeddings": True,
        "vocab_multiple_of": 8,
    },
}
SPARSE: dict[str, dict[str, Any]] = {
    "qwen3_moe": sparse(),
    "deepseek": {
        "mla": MLA(query_rank=8, kv_rank=6, rope_head_dim=4, nope_head_dim=4, value_head_dim=4),
        "moe": MoE(
            experts=8,
            expert_dim=16,
            shared_experts=1,
            first_dense=1,
            groups=4,
            top_groups=2,
            route_scale=2.5,
            sequence_balance_loss=0.3,
            router=SigmoidTopK(),
        ),
    },
    "llama4": {
        "attention_pattern": ("chunked", "full"),
        "attention_chunk": 5,
        "attention_temperature": AttentionTemperature(interval=3, scale=0.5),
        "rope_pattern": (True, False),
        "qk_norm": True,
        "qk_norm_pattern": (True, False),
        "qk_norm_weights": False,
        "moe": MoE(
            experts=4,
            top_k=1,
            expert_dim=16,
            every=2,
            shared_experts=1,
            scale_inputs=True,
            router=SigmoidTopK(bias_rate=None, normalize=False),
        ),
    },
}
FAMILIES = DENSE | SPARSE
