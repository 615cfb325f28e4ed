"""Qwen3 in its published sizes, without and with experts, and small ones of the same builds.

Shapes: config.json of Qwen/Qwen3-0.6B-Base to Qwen/Qwen3-14B-Base and of Qwen/Qwen3-32B on Hugging
Face; the Qwen3 Technical Report, 2025, table 1, has them, too. The config.json of
Qwen/Qwen3-30B-A3B-Base also has the weight of the balance loss. The report gives no optimizer
settings; those used here are common starting points. Sequences have 4096 tokens, as in its first
stage.
"""

from __future__ import annotations

from collections.abc import Callable

from setpoint.config import preset
from setpoint.model.config import TransformerConfig
from setpoint.model.moe.config import MoE
from setpoint.presets.recipes import published, sized, small
from setpoint.train.config import BatchConfig, Job


def _size(
    name: str,
    title: str,
    parameters: int,
    dim: int,
    layers: int,
    heads: int,
    ffn_dim: int,
    lr: float,
    tied: bool = False,
) -> Callable[[], Job]:
    def job(name: str) -> Job:
        model = TransformerConfig(
            vocab_size=151_936,
            dim=dim,
            layers=layers,
            heads=heads,
            kv_heads=8,
            head_dim=128,
            ffn_dim=ffn_dim,
            qk_norm=True,
            norm_eps=1e-6,
            rope_base=1_000_000.0,
            max_sequence_length=40_960,
            init_std=0.02,
            residual_init="plain",
            tie_embeddings=tied,
        )
        # 4M tokens in an update.
        batch = BatchConfig(global_size=1024, micro_size=1, sequence_length=4096)
        return published(name, model, batch, lr=lr)

    return sized(name, title, parameters, job)


# fmt: off
#                  name          title         parameters   dim layers heads ffn_dim  lr    tied
qwen3_0_6b = _size("qwen3-0-6b", "Qwen3 0.6B",    596_049_920, 1024, 28, 16,  3_072, 1e-3, True)
qwen3_1_7b = _size("qwen3-1-7b", "Qwen3 1.7B",  1_720_574_976, 2048, 28, 16,  6_144, 6e-4, True)
qwen3_4b   = _size("qwen3-4b",   "Qwen3 4B",    4_022_468_096, 2560, 36, 32,  9_728, 4e-4, True)
qwen3_8b   = _size("qwen3-8b",   "Qwen3 8B",    8_190_735_360, 4096, 36, 32, 12_288, 3e-4)
qwen3_14b  = _size("qwen3-14b",  "Qwen3 14B",  14_768_307_200, 5120, 40, 40, 17_408, 3e-4)
qwen3_32b  = _size("qwen3-32b",  "Qwen3 32B",  32_762_123_264, 5120, 64, 64, 25_600, 1.5e-4)
# fmt: on


@preset
def qwen3_tiny() -> Job:
    """A small Qwen3, trained on bytes of the standard library; half a minute on two cores."""
    model = TransformerConfig(
        dim=128,
        layers=4,
        heads=4,
        kv_heads=2,
        head_dim=48,  # as in the published ones, heads * head_dim is not dim
        ffn_dim=384,
        qk_norm=True,
        norm_eps=1e-6,
        rope_base=1_000_000.0,
        tie_embeddings=True,
    )
    return small("qwen3-tiny", model)


@preset
def qwen3_30b_a3b() -> Job:
    """Qwen3 30B-A3B: 30,532,122,624 parameters, 3.35e9 active per token."""
    model = TransformerConfig(
        vocab_size=151_936,
        dim=2048,
        layers=48,
        heads=32,
        kv_heads=4,
        head_dim=128,
        moe=MoE(experts=128, top_k=8, expert_dim=768, balance_loss=0.001),
        qk_norm=True,
        norm_eps=1e-6,
        rope_base=1_000_000.0,
        max_sequence_length=40_960,
        init_std=0.02,
        residual_init="plain",
    )
    # 4M tokens in an update.
    batch = BatchConfig(global_size=1024, micro_size=1, sequence_length=4096)
    return published("qwen3-30b-a3b", model, batch, lr=3e-4)


@preset
def qwen3_moe_tiny() -> Job:
    """A small Qwen3 with experts, trained on bytes of the standard library; under a minute."""
    model = TransformerConfig(
        dim=128,
        layers=4,
        heads=4,
        kv_heads=2,
        head_dim=48,
        moe=MoE(experts=8, top_k=2, expert_dim=128, balance_loss=0.001),
        qk_norm=True,
        norm_eps=1e-6,
        rope_base=1_000_000.0,
    )
    return small("qwen3-moe-tiny", model)
