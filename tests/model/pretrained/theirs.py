"""Small models of transformers with random weights, large enough that every key shows."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

VOCAB, LENGTH = 40, 48
BASE: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
GPT2 = {
    "vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": LENGTH,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5000.0, "factor": 4.0, "low_freq_factor": 1.0,
    "high_freq_factor": 3.0, "original_max_position_embeddings": 16,
}  # fmt: skip
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
DEFAULT_ROPE = {"rope_theta": 1e4, "rope_type": "default"}
MOE = {
    "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 16,
    "num_hidden_layers": 4,
}  # fmt: skip
GEMMA = {
    "head_dim": 16,
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
}

LATENT: dict[str, Any] = {
    "num_key_value_heads": 4, "kv_lora_rank": 12, "q_lora_rank": 20, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 10, "v_head_dim": 6, "n_routed_experts": 8, "n_shared_experts": 2,
    "num_experts_per_tok": 3, "moe_intermediate_size": 24, "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7, "rms_norm_eps": 1e-6,
}  # fmt: skip
GLM_EXPERTS: dict[str, Any] = {
    "n_routed_experts": 6, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "moe_intermediate_size": 24, "first_k_dense_replace": 1, "routed_scaling_factor": 1.3,
}  # fmt: skip
OSS: dict[str, Any] = {
    "num_local_experts": 6,
    "num_experts_per_tok": 3,
    "head_dim": 16,
    "sliding_window": 7,
    "rope_parameters": {**YARN, "truncate": False},
}
LLAMA4: dict[str, Any] = {
    "num_hidden_layers": 4, "head_dim": 16, "intermediate_size": 24, "intermediate_size_mlp": 40,
    "num_local_experts": 6, "attention_chunk_size": 7, "floor_scale": 5, "attn_scale": 0.5,
}  # fmt: skip
DEEPSEEK_YARN = {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7, "beta_fast": 32, "beta_slow": 1}

# model_type, and the keys that differ from BASE.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied, one head": ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 12}),
    "llama 3.1": ("llama", {"rope_parameters": LLAMA3, "rms_norm_eps": 1e-3}),
    "llama linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    ),
    "llama yarn": ("llama", {"rope_parameters": YARN, "hidden_act": "gelu"}),
    "llama yarn, all keys": (
        "llama",
        {
            "rope_parameters": {
                **YARN, "beta_fast": 8.0, "beta_slow": 2.0, "mscale": 1.0, "mscale_all_dim": 0.5,
                "truncate": False,
            }
        },
    ),
    "mistral": ("mistral", {"sliding_window": 5}),
    "mistral without a window": ("mistral", {"sliding_window": None, "head_dim": 12}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2 with windows above": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3 with biases and windows": (
        "qwen3",
        {
            "head_dim": 16, "attention_bias": True, "use_sliding_window": True, "sliding_window": 4,
            "max_window_layers": 2, "rope_parameters": YARN,
        },
    ),
    "qwen3 moe": ("qwen3_moe", {**MOE, "norm_topk_prob": True}),
    "qwen3 moe, not normalized": ("qwen3_moe", {**MOE, "norm_topk_prob": False}),
    "qwen3 moe, every other layer": ("qwen3_moe", {**MOE, "decoder_sparse_step": 2}),
    "qwen3 moe, first layers dense": (
        "qwen3_moe",
        {**MOE, "mlp_only_layers": [0, 1], "use_sliding_window": True, "sliding_window": 7},
    ),
    "gemma2": (
        "gemma2",
        {
            "head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.5,
        },
    ),
    "gemma3": ("gemma3_text", {**GEMMA, "query_pre_attn_scalar": 16}),
    "gemma3 with caps": (
        "gemma3_text",
        {
            **GEMMA,
            "query_pre_attn_scalar": 40,
            "final_logit_softcapping": 2.0,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 5e4, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
        },
    ),
    "gemma3 full": ("gemma3_text", {"head_dim": 16, "layer_types": ["full_attention"] * 3}),
    "gemma3 sliding": ("gemma3_text", {**GEMMA, "layer_types": ["sliding_attention"] * 3}),
    "mixtral": ("mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "mixtral with windows": (
        "mixtral",
        {"num_local_experts": 4, "sliding_window": 5, "rms_norm_eps": 1e-3},
    ),
    "phi3": ("phi3", {"num_key_value_heads": 4}),
    "phi3 with windows": ("phi3", {"sliding_window": 5, "resid_pdrop": 0.1}),
    "granite": (
        "granite",
        {
            "embedding_multiplier": 3.0, "residual_multiplier": 0.3, "attention_multiplier": 0.2,
            "logits_scaling": 6.0, "attention_bias": True,
        },
    ),
    "granite tied": (
        "granite",
        {"tie_word_embeddings": True, "mlp_bias": True, "attention_multiplier": 0.35},
    ),
    "gemma": ("gemma", {"head_dim": 16}),
    "deepseek_v2": ("deepseek_v2", LATENT),
    "deepseek_v2 with groups": (
        "deepseek_v2",
        {
            **LATENT, "q_lora_rank": None, "topk_method": "group_limited_greedy", "n_group": 4,
            "topk_group": 2, "rope_parameters": DEEPSEEK_YARN,
        },
    ),
    "deepseek_v2 with groups that limit nothing": (
        "deepseek_v2",
        {**LATENT, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 3},
    ),
    "deepseek_v3": ("deepseek_v3", {**LATENT, "n_group": 4, "topk_group": 2}),
    "deepseek_v3 with yarn": (
        "deepseek_v3",
        {
            **LATENT,
            "n_group": 1,
            "topk_group": 1,
            "q_lora_rank": None,
            "norm_topk_prob": False,
            "rope_parameters": {**DEEPSEEK_YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
        },
    ),
    "phi3, part of each head": (
        "phi3",
        {"rope_parameters": {**DEFAULT_ROPE, "partial_rotary_factor": 0.75}},
    ),
    "qwen2_moe": (
        "qwen2_moe",
        {**MOE, "head_dim": 8, "shared_expert_intermediate_size": 48, "norm_topk_prob": False},
    ),
    "qwen2_moe with windows": (
        "qwen2_moe",
        {
            **MOE, "shared_expert_intermediate_size": 24, "use_sliding_window": True,
            "sliding_window": 5, "max_window_layers": 3, "mlp_only_layers": [0], "qkv_bias": False,
        },
    ),
    "olmo2": ("olmo2", {"attention_bias": True}),
    "olmo3": (
        "olmo3",
        {
            "num_hidden_layers": 5,
            "sliding_window": 6,
            "rope_parameters": {
                "full_attention": YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    ),
    "olmo3 without scaling": ("olmo3", {"num_hidden_layers": 4, "sliding_window": 6}),
    "olmoe": ("olmoe", {"num_experts": 6, "num_experts_per_tok": 2, "num_key_value_heads": 4}),
    "smollm3": ("smollm3", {"num_hidden_layers": 4}),
    "smollm3 with windows": (
        "smollm3",
        {
            "no_rope_layers": [0, 1, 1],
            "use_sliding_window": True,
            "sliding_window": 7,
            "tie_word_embeddings": False,
        },
    ),
    "glm": ("glm", {"head_dim": 16}),
    "glm4": ("glm4", {"head_dim": 16, "rms_norm_eps": 1e-5}),
    "glm4, all of each head": (
        "glm4",
        {
            "head_dim": 8,
            "attention_bias": False,
            "rope_parameters": {**DEFAULT_ROPE, "partial_rotary_factor": 1.0},
        },
    ),
    "glm4_moe": ("glm4_moe", {**GLM_EXPERTS, "use_qk_norm": True}),
    "glm4_moe with biases": ("glm4_moe", {**GLM_EXPERTS, "attention_bias": True, "head_dim": 16}),
    "gpt_oss": ("gpt_oss", {**OSS, "layer_types": None, "num_hidden_layers": 4}),
    "gpt_oss, full layers": (
        "gpt_oss",
        {
            **OSS,
            "attention_bias": False,
            "layer_types": ["full_attention"] * 3,
            "rope_parameters": DEFAULT_ROPE,
        },
    ),
    "llama4": ("llama4_text", LLAMA4),
    "llama4, two experts in every other layer": (
        "llama4_text",
        {
            **LLAMA4, "num_experts_per_tok": 2, "interleave_moe_layer_step": 2,
            "no_rope_layers": [0, 1, 1, 0], "use_qk_norm": False, "attention_bias": True,
            "rope_parameters": LLAMA3,
        },
    ),
    "llama4, other layers, without a temperature": (
        "llama4_text",
        {
            **LLAMA4,
            "moe_layers": [2, 3],
            "layer_types": ["chunked_attention", "full_attention"] * 2,
            "attn_temperature_tuning": False,
            "rope_parameters": {**LLAMA3, "high_freq_factor": 1.0},  # as that of low frequencies
            "tie_word_embeddings": True,
        },
    ),
    "gpt2": ("gpt2", {}),
    "gpt2 with its own widths": (
        "gpt2",
        {"n_inner": 40, "tie_word_embeddings": False, "activation_function": "relu"},
    ),
    "gpt2 without scale": ("gpt2", {"scale_attn_weights": False}),
    # Unusual shapes.
    "odd sizes": ("llama", {"hidden_size": 30, "intermediate_size": 37, "num_attention_heads": 5,
                            "num_key_value_heads": 1, "head_dim": 14}),
    "a window of one": ("mistral", {"sliding_window": 1}),
    "all experts": ("qwen3_moe", {**MOE, "num_experts": 5, "num_experts_per_tok": 5}),
    "one key-value head": (
        "gemma3_text",
        {**GEMMA, "num_key_value_heads": 1, "sliding_window": 1, "head_dim": 6,
         "query_pre_attn_scalar": 3},
    ),
    "heads of seven": ("gpt2", {"n_embd": 21, "n_head": 3, "n_inner": 17}),
}  # fmt: skip


def make(kind: str, keys: dict[str, Any]) -> Any:
    """A model in evaluation mode whose weights are large, and the same each time."""
    import transformers

    base = GPT2 if kind == "gpt2" else BASE
    config = transformers.AutoConfig.for_model(kind, **{**base, **keys})
    # Their other implementations have no soft cap.
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = "norm" in name or ".ln_" in name
            drawn = torch.randn(parameter.shape, generator=generator) * 0.2
            shifted = is_norm and name.endswith("weight") and not kind.startswith("gemma")
            parameter.copy_(drawn + 1.0 if shifted else drawn)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.2)
    return model.eval()


@contextmanager
def fp64_angles() -> Iterator[None]:
    """Let models that are made and run here compute angles of RoPE in fp64, as ours do."""
    with patch.object(torch, "float", torch.float64), patch.object(Tensor, "float", Tensor.double):
        yield


def tokens(vocab: int = VOCAB, length: int = LENGTH) -> Tensor:
    """(2, length) tokens."""
    return torch.randint(0, vocab, (2, length), generator=torch.Generator().manual_seed(1))


def logits(model: Any) -> Tensor:
    """What a model of theirs or ours says to the tokens."""
    with torch.no_grad():
        found = model(tokens())
    return found if isinstance(found, Tensor) else found.logits


def saved(folder: Path, kind: str = "llama", **keys: Any) -> Path:
    """The directory of a small model that transformers wrote."""
    make(kind, keys).save_pretrained(folder)
    return folder
