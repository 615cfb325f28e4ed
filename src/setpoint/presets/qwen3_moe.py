"""Qwen3 with experts in its smaller published size, and a small one of the same build.

Shape: config.json of Qwen/Qwen3-30B-A3B-Base on Hugging Face, which gives the weight of the balance
loss, too. The Qwen3 Technical Report, 2025, gives no settings of the optimizer; these are common
ones to start from.
"""

from __future__ import annotations

from setpoint.config import preset
from setpoint.model.config import Transformer
from setpoint.model.moe.config import MoE
from setpoint.presets.recipes import published, small
from setpoint.train.batch import Batch
from setpoint.train.config import Job


@preset
def qwen3_30b_a3b() -> Job:
    """Qwen3 30B-A3B: 30,532,122,624 parameters, of which a token meets 3.35e9.

    Returns:
        a new draft; data, tokenizer and duration are yours to choose.
    """
    model = Transformer(
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
    batch = Batch(global_size=1024, micro_size=1, sequence_length=4096)
    return published("qwen3-30b-a3b", model, batch, lr=3e-4)


@preset
def qwen3_moe_tiny() -> Job:
    """Qwen3 with experts in small, on bytes of the standard library; under a minute."""
    model = Transformer(
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
