"""gpt-oss in its published sizes.

Shapes: config.json of openai/gpt-oss-20b and openai/gpt-oss-120b on Hugging Face; gpt-oss-120b &
gpt-oss-20b Model Card, OpenAI, 2025, table 1. Neither gives optimizer settings; those used here are
common starting points. The weight of the balance loss is the default of transformers.
"""

from __future__ import annotations

from collections.abc import Callable

from setpoint.model.attention.config import YarnScaling
from setpoint.model.config import TransformerConfig
from setpoint.model.moe.config import MoE
from setpoint.presets.recipes import published, sized
from setpoint.train.config import BatchConfig, Job


def _size(
    name: str, title: str, parameters: int, layers: int, experts: int, lr: float
) -> Callable[[], Job]:
    def job(name: str) -> Job:
        model = TransformerConfig(
            vocab_size=201_088,
            dim=2880,
            layers=layers,
            heads=64,
            kv_heads=8,
            head_dim=64,
            activation="swiglu_clamped",
            moe=MoE(experts=experts, top_k=4, expert_dim=2880, bias=True, balance_loss=0.001),
            qkv_bias=True,
            attention_output_bias=True,
            attention_sinks=True,
            attention_pattern=("sliding", "full"),
            sliding_window=128,
            norm_eps=1e-5,
            rope_base=150_000.0,
            rope_scaling=YarnScaling(factor=32.0, original_length=4096, truncate=False),
            max_sequence_length=131_072,
            init_std=0.02,
            residual_init="plain",
        )
        # 4M tokens in an update.
        batch = BatchConfig(global_size=1024, micro_size=1, sequence_length=4096)
        return published(name, model, batch, lr=lr)

    return sized(name, title, parameters, job)


gpt_oss_20b = _size("gpt-oss-20b", "gpt-oss 20B", 20_914_757_184, 24, 32, 3e-4)
gpt_oss_120b = _size("gpt-oss-120b", "gpt-oss 120B", 116_829_156_672, 36, 128, 2e-4)
