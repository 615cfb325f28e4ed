"""torchtitan's models by name and flavor, and its named configurations, as of release 0.3.

Up to release 0.2 a TOML file chose a flavor; since then a configuration has a name, and a command
line overrides it: `--module llama3 --config llama3_8b --training.steps 100`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def _llama2(
    dim: int, layers: int, heads: int, kv_heads: int, ffn_dim: int, **more: Any
) -> dict[str, Any]:
    """A decoder of Llama 2."""
    return {"dim": dim, "layers": layers, "heads": heads, "kv_heads": kv_heads,
            "ffn_dim": ffn_dim, "rope_base": 10_000.0, "vocab_size": 32_000, **more}  # fmt: skip


def _llama3(*sizes: int, **more: Any) -> dict[str, Any]:
    """A decoder of Llama 3.1, with the vocabulary of its tokenizer and its scaled positions."""
    scaling = {"type": "llama3", "factor": 8.0, "original_length": 8192}
    fields = _llama2(*sizes, rope_base=500_000.0, rope_scaling=scaling, **more)
    del fields["vocab_size"]
    return fields


def _qwen3(
    dim: int, layers: int, heads: int, kv_heads: int, ffn_dim: int, **more: Any
) -> dict[str, Any]:
    """A decoder of Qwen 3; small ones tie embeddings."""
    return {
        "dim": dim, "layers": layers, "heads": heads, "kv_heads": kv_heads, "head_dim": 128,
        "ffn_dim": ffn_dim, "qk_norm": True, "norm_eps": 1e-6, "rope_base": 1_000_000.0,
        "vocab_size": 151_936, **more,
    }  # fmt: skip


def _experts(experts: int, top_k: int, dim: int, **more: Any) -> dict[str, Any]:
    """Experts whose load is balanced only by biases."""
    return {
        "experts": experts, "top_k": top_k, "expert_dim": dim, "balance_loss": 0.0,
        "router": {"type": "softmax_top_k", "normalize": True}, **more,
    }  # fmt: skip


def _deepseek(
    dim: int, layers: int, heads: int, ffn_dim: int, query_rank: int | None, moe: dict[str, Any],
    vocab_size: int = 102_400,
) -> dict[str, Any]:  # fmt: skip
    """A decoder of DeepSeek V3 with latent attention and dense first layers."""
    return {
        "dim": dim, "layers": layers, "heads": heads, "ffn_dim": ffn_dim, "rope_base": 10_000.0,
        "vocab_size": vocab_size, "moe": moe, "mla": {
            "query_rank": query_rank, "kv_rank": 512, "rope_head_dim": 64, "nope_head_dim": 128,
            "value_head_dim": 128}}  # fmt: skip


def _gpt_oss(dim: int, layers: int, experts: int, vocab_size: int) -> dict[str, Any]:
    """A decoder of gpt-oss, with a window in every other layer."""
    return {
        "dim": dim, "layers": layers, "heads": 64, "kv_heads": 8, "head_dim": 64,
        "activation": "swiglu_clamped", "qkv_bias": True, "attention_output_bias": True,
        "attention_sinks": True, "attention_pattern": ["sliding", "full"], "sliding_window": 128,
        "moe": _experts(experts, 4, 2880, bias=True), "rope_base": 150_000.0,
        "rope_scaling": {"type": "yarn", "factor": 32.0, "original_length": 4096,
                         "truncate": False}, "vocab_size": vocab_size}  # fmt: skip


def _llama4(*sizes: int, experts: int, expert_dim: int, chunk: int = 8192, scaled: bool = True,
            vocab_size: int = 202_048, **moe: Any) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Decoders of Llama 4: with RoPE in all layers, and with chunks and NoPE layers (iRoPE)."""
    router = {"type": "sigmoid_top_k", "normalize": False, "bias_rate": 1e-3}
    fields = _llama2(
        *sizes,
        rope_base=500_000.0,
        vocab_size=vocab_size,
        moe=_experts(
            experts, 1, expert_dim, shared_experts=1, scale_inputs=True, router=router, **moe
        ),
    )
    if scaled:
        fields["rope_scaling"] = {
            "type": "llama3",
            "factor": 16.0,
            "original_length": 8192,
            "low_frequency_factor": 1.0,
            "high_frequency_factor": 1.0,
        }
    return {"": fields, "_irope": {
        **fields, "rope_pattern": [False, True, True, True], "attention_chunk": chunk,
        "attention_pattern": ["full", "chunked", "chunked", "chunked"]}}  # fmt: skip


LLAMA4 = {
    "debugmodel": _llama4(256, 6, 16, 16, 768, experts=8, expert_dim=512, every=2, chunk=256,
                          vocab_size=2048),
    "17bx16e": _llama4(5120, 48, 40, 8, 16_384, experts=16, expert_dim=8192),
    "17bx128e": _llama4(5120, 48, 40, 8, 16_384, experts=128, expert_dim=8192, every=2,
                        scaled=False),
}  # fmt: skip
PLAIN = {"type": "softmax_top_k", "normalize": False}
SIGMOID = {"type": "sigmoid_top_k", "bias_rate": 1e-3}
FLAVORS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "llama2": {
        "debugmodel": _llama2(256, 8, 16, 16, 768),
        "7B": _llama2(4096, 32, 32, 32, 11_008),
        "13B": _llama2(5120, 40, 40, 40, 13_824),
        "70B": _llama2(8192, 80, 64, 8, 28_672),
    },
    "llama3": {
        "debugmodel": _llama3(256, 6, 16, 16, 768),
        "1B": _llama3(2048, 16, 32, 8, 8192, tie_embeddings=True),
        "3B": _llama3(3072, 28, 24, 8, 8192, tie_embeddings=True),
        "8B": _llama3(4096, 32, 32, 8, 14_336),
        "70B": _llama3(8192, 80, 64, 8, 28_672),
        "405B": _llama3(16_384, 126, 128, 8, 53_248),
    },
    "qwen3": {
        "debugmodel": _qwen3(256, 8, 16, 8, 3072, vocab_size=2048, tie_embeddings=True),
        "0.6B": _qwen3(1024, 28, 16, 8, 3072, tie_embeddings=True),
        "1.7B": _qwen3(2048, 28, 16, 8, 6144, tie_embeddings=True),
        "4B": _qwen3(2560, 36, 32, 8, 9728, tie_embeddings=True),
        "8B": _qwen3(4096, 36, 32, 8, 12_288),
        "14B": _qwen3(5120, 40, 40, 8, 17_408),
        "32B": _qwen3(5120, 64, 64, 8, 25_600),
        "debugmodel_moe": _qwen3(256, 8, 16, 8, 3072, vocab_size=2048, moe=_experts(64, 8, 768)),
        "30B-A3B": _qwen3(2048, 48, 32, 4, 6144, moe=_experts(128, 8, 768)),
        "235B-A22B": _qwen3(4096, 94, 64, 4, 12_288, rope_base=5_000_000.0,
                            moe=_experts(128, 8, 1536)),
    },
    "deepseek_v3": {
        "debugmodel": _deepseek(256, 6, 16, 1024, None, _experts(
            8, 3, 256, shared_experts=2, first_dense=1, router=PLAIN), vocab_size=2048),
        "16B": _deepseek(2048, 27, 16, 10_944, None, _experts(
            64, 6, 1408, shared_experts=2, first_dense=1, router=PLAIN)),
        "236B": _deepseek(5120, 60, 128, 12_288, 1536, _experts(
            160, 6, 1536, shared_experts=2, first_dense=1, router=PLAIN, route_scale=16.0,
            groups=8, top_groups=3)),
        "671B": _deepseek(7168, 61, 128, 18_432, 1536, _experts(
            256, 8, 2048, shared_experts=1, first_dense=3, router=SIGMOID, route_scale=2.5,
            groups=8, top_groups=4), vocab_size=129_280),
    },
    "kimi_k2_7": {
        "moonlight-16B-A3B": {**_deepseek(2048, 27, 16, 11_264, None, _experts(
            64, 6, 1408, shared_experts=2, first_dense=1, router=SIGMOID, route_scale=2.446),
            vocab_size=163_840), "rope_base": 50_000.0},
    },
    "llama4": {size + end: fields
               for size, kinds in LLAMA4.items() for end, fields in kinds.items()},
    "gpt_oss": {
        "debugmodel": _gpt_oss(256, 4, 8, 2048),
        "20b": _gpt_oss(2880, 24, 32, 201_088),
        "120b": _gpt_oss(2880, 36, 128, 201_088),
    },
}  # fmt: skip
"""Fields of [model] by names and flavors."""


def _named(module: str, flavor: str, assets: str, batch: int, length: int, steps: int, lr: float,
           **more: object) -> dict[str, Any]:  # fmt: skip
    """A named configuration, with recomputation by operation and masks that isolate documents."""
    keys = {
        "model.name": module, "model.flavor": flavor, "model.attn_mask_type": "block_causal",
        "model.hf_assets_path": f"./assets/hf/{assets}",
        "training.local_batch_size": batch, "training.seq_len": length, "training.steps": steps,
        "training.dataset": "c4", "optimizer.lr": lr, "activation_checkpoint.mode": "selective",
        "activation_checkpoint.selective_ac_option": "op",
        "profiling.save_traces_folder": "profiling/traces",
    }  # fmt: skip
    if assets == "tests":
        keys |= {"model.hf_assets_path": "./tests/assets/tokenizer", "training.dataset": "c4_test",
                 "metrics.log_freq": 1, "lr_scheduler.warmup_steps": 2,
                 "lr_scheduler.decay_ratio": 0.8, "checkpoint.interval": 10,
                 "checkpoint.last_save_model_only": False}  # fmt: skip
    return keys | {name.replace("__", "."): value for name, value in more.items()}


def _llama(flavor: str, batch: int, steps: int, lr: float, **more: object) -> dict[str, Any]:
    """A configuration of Llama 3, with traces and TensorBoard."""
    return _named("llama3", flavor, f"Llama-3.1-{flavor}", batch, 8192, steps, lr,
                  profiling__enable_profiling=True, profiling__profile_freq=100,
                  metrics__enable_tensorboard=True, validation__freq=500, validation__steps=1200,
                  **more)  # fmt: skip


def _qwen(flavor: str, batch: int, steps: int, lr: float, **more: object) -> dict[str, Any]:
    """A configuration of Qwen 3 whose last checkpoint can be resumed."""
    return _named("qwen3", flavor, f"Qwen3-{flavor}", batch, 4096, steps, lr,
                  lr_scheduler__warmup_steps=steps // 5, checkpoint__last_save_model_only=False,
                  checkpoint__export_dtype="float16", **more)  # fmt: skip


FULL = {"activation_checkpoint__mode": "full", "activation_checkpoint__selective_ac_option": "2"}
VALIDATION = {"validation__freq": 5, "validation__steps": 10}
COSINE = {"lr_scheduler__decay_ratio": 0.8, "lr_scheduler__decay_type": "cosine",
          "lr_scheduler__min_lr_factor": 0.1}  # fmt: skip
DEEPSEEK = {**COSINE, "compile__enable": True, "compile__components": ["loss"],
            "parallelism__pipeline_parallel_schedule": "Interleaved1F1B"}  # fmt: skip
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "llama3_debugmodel": _named(
        "llama3", "debugmodel", "tests", 8, 2048, 10, 8e-4,
        parallelism__pipeline_parallel_schedule="Interleaved1F1B", **VALIDATION),
    "llama3_8b": _llama("8B", 1, 1000, 3e-4),
    "llama3_70b": _llama("70B", 8, 1000, 1.5e-4, parallelism__tensor_parallel_degree=8, **FULL),
    "llama3_405b": _llama(
        "405B", 2, 3000, 8e-5, parallelism__tensor_parallel_degree=8, compile__enable=True,
        parallelism__enable_async_tensor_parallel=True, lr_scheduler__warmup_steps=600,
        model__converters=["float8"], float8__enable_fsdp_float8_all_gather=True,
        float8__filter_fqns=["output"], **FULL),
    "qwen3_debugmodel": _named("qwen3", "debugmodel", "tests", 8, 2048, 10, 8e-4),
    "qwen3_0_6b": _qwen("0.6B", 4, 10, 3e-4, metrics__log_freq=1),
    "qwen3_1_7b": _qwen("1.7B", 4, 100, 8e-4, checkpoint__interval=50),
    "qwen3_14b": _qwen("14B", 4, 3000, 8e-4, **FULL),
    "qwen3_30b_a3b": _qwen("30B-A3B", 2, 3000, 8e-4, **FULL),
    "qwen3_32b": _qwen("32B", 2, 3000, 8e-4, **FULL),
    "qwen3_moe_debug": _named("qwen3", "debugmodel_moe", "tests", 4, 4096, 10, 3e-4,
                              checkpoint__export_dtype="float16", lr_scheduler__decay_ratio=None),
    "deepseek_v3_debugmodel": _named("deepseek_v3", "debugmodel", "tests", 8, 2048, 10, 8e-4),
    "deepseek_v3_16b": _named(
        "deepseek_v3", "16B", "deepseek-moe-16b-base", 4, 4096, 1000, 2.2e-4,
        parallelism__expert_parallel_degree=8, checkpoint__interval=10, **DEEPSEEK),
    "deepseek_v3_671b": _named(
        "deepseek_v3", "671B", "DeepSeek-V3.1-Base", 4, 4096, 10_000, 2.2e-4,
        parallelism__expert_parallel_degree=2, lr_scheduler__warmup_steps=2000, **DEEPSEEK),
    "gpt_oss_debugmodel": _named("gpt_oss", "debugmodel", "tests", 8, 2048, 10, 8e-4,
                                 activation_checkpoint__mode="none", **VALIDATION),
    **{f"gpt_oss_{size}": _named(
        "gpt_oss", size, f"gpt-oss-{size}", 1, 8192, 10_000, 8e-4,
        lr_scheduler__warmup_steps=2000, **COSINE, **FULL) for size in ("20b", "120b")},
    "moonlight_16b_a3b": _named(
        "kimi_k2_7", "moonlight-16B-A3B", "Moonlight-16B-A3B", 4, 4096, 10_000, 3e-4,
        parallelism__expert_parallel_degree=8, optimizer__name="DistMuon",
        lr_scheduler__warmup_steps=2000, **COSINE, **FULL),
}  # fmt: skip
FLOAT8 = {"model.converters": ["float8"]}
NVFP4, NVFP4_TAIL = {"model.converters": ["nvfp4"]}, {"model.converters": ["nvfp4_bf16_tail"]}
MXFP8 = {"model.converters": ["mx"], "mx.filter_fqns": ["output", "router.gate"],
         "mx.moe_fqns_prototype": ["experts"]}  # fmt: skip
SAME = {
    "llama3_debugmodel": "llama3_debugmodel_varlen_attn llama3_debugmodel_ce_loss "
                         "llama3_debugmodel_dist_gemm",
    "qwen3_debugmodel": "qwen3_debugmodel_flex_flash qwen3_debugmodel_non_fused_qkv",
    "deepseek_v3_debugmodel": "deepseek_v3_debugmodel_hybridep",
    "deepseek_v3_16b": "deepseek_v3_16b_hybridep",
    "gpt_oss_debugmodel": "gpt_oss_debugmodel_flex",
}  # fmt: skip
"""Configurations that differ from another by kernels alone."""
LOCAL = {"parallelism.data_parallel_shard_degree": 1, "parallelism.expert_parallel_degree": 1,
         "parallelism.enable_sequence_parallel": False,
         "parallelism.pipeline_parallel_schedule": "1F1B"}  # fmt: skip
PRESETS = {
    **PRESETS,
    **{name: PRESETS[other] for other, names in SAME.items() for name in names.split()},
    "llama3_debugmodel_float8": {**PRESETS["llama3_debugmodel"], **FLOAT8},
    "llama3_8b_mxfp8": {**PRESETS["llama3_8b"], "model.converters": ["mx"], "compile.enable": True,
                        "compile.components": ["model"]},
    **{f"{name}_nvfp4": {**PRESETS[name], **NVFP4}
       for name in ("llama3_debugmodel", "qwen3_debugmodel")},
    **{f"{name}_first_85_pct_layers_nvfp4": {**PRESETS[name], **NVFP4_TAIL}
       for name in ("llama3_debugmodel", "qwen3_debugmodel")},
    "llama3_8b_first_85_pct_layers_nvfp4": {**PRESETS["llama3_8b"], **NVFP4_TAIL,
        "compile.enable": True, "compile.components": ["model"]},
    "deepseek_v3_debugmodel_mxfp8": {**PRESETS["deepseek_v3_debugmodel"], **MXFP8},
    "qwen3_moe_deepep": {**PRESETS["qwen3_moe_debug"], "training.local_batch_size": 2,
                         "training.seq_len": 512, "parallelism.expert_parallel_degree": 4,
                         "checkpoint.interval": 1000},
    "deepseek_v3_debugmodel_minimal_async_ep": {**PRESETS["deepseek_v3_debugmodel"], **LOCAL},
    "deepseek_v3_16b_minimal_async_ep": {**PRESETS["deepseek_v3_16b"], **LOCAL},
    "deepseek_v3_671b_float8": {**PRESETS["deepseek_v3_671b"], **FLOAT8,
                                "float8.filter_fqns": ["output", "router.gate"]},
}  # fmt: skip
GRAPHS = {"compile.enable": True, "compile.components": ["model", "loss"],
          "activation_checkpoint.mode": "selective",
          "activation_checkpoint.selective_ac_option": "op"}  # fmt: skip
PRESETS |= {
    f"graph_trainer_{name}": {**PRESETS[name], **GRAPHS}
    for name in (
        *("llama3_debugmodel", "llama3_debugmodel_dist_gemm", "llama3_8b", "llama3_8b_mxfp8"),
        *("llama3_70b", "llama3_405b", "qwen3_debugmodel", "qwen3_14b", "deepseek_v3_debugmodel"),
        *("deepseek_v3_debugmodel_hybridep", "deepseek_v3_debugmodel_minimal_async_ep"),
        *("deepseek_v3_16b", "deepseek_v3_16b_minimal_async_ep", "deepseek_v3_671b"),
        "deepseek_v3_debugmodel_mxfp8",
    )
}
CAUSAL = {"model.attn_mask_type": "causal"}  # PyTorch's kernel takes no mask of documents
PRESETS |= {
    "graph_trainer_qwen3_debugmodel_moe": {**PRESETS["qwen3_moe_debug"], **GRAPHS},
    "graph_trainer_deepseek_v3_debugmodel_eager_pp": PRESETS["deepseek_v3_debugmodel"],
    "graph_trainer_deepseek_v3_16b_sdpa": {
        **PRESETS["graph_trainer_deepseek_v3_16b"], **CAUSAL},
    **{f"graph_trainer_llama3_debugmodel_sdpa{loss}":
       {**PRESETS["graph_trainer_llama3_debugmodel"], **CAUSAL}
       for loss in ("", "_cross_entropy_loss")},
    "graph_trainer_llama3_debugmodel_sdpa_eager": {**PRESETS["llama3_debugmodel"], **CAUSAL},
}  # fmt: skip
"""Keys of named configurations that are not at their defaults."""
