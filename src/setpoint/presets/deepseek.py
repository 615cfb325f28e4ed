"""DeepSeek-V3 as published, and a small one of the same build.

Shape: config.json of deepseek-ai/DeepSeek-V3-Base on Hugging Face; without the multi-token
prediction module. Learning rate, weight decay, rate of the router's bias, weight of the balance
loss and tokens per update: DeepSeek-V3 Technical Report, 2024, section 4.2.
"""

from __future__ import annotations

from math import log, sqrt

from setpoint.config import preset
from setpoint.memory.config import Full
from setpoint.model.attention.config import MLA, YarnScaling
from setpoint.model.config import TransformerConfig
from setpoint.model.moe.config import MoE, SigmoidTopK
from setpoint.presets.recipes import published, small
from setpoint.train.config import BatchConfig, Job

STRETCH = 40.0
HEAD = 128 + 64


@preset
def deepseek_v3() -> Job:
    """DeepSeek-V3: 671,026,419,200 parameters, 37.6e9 active per token.

    14,848 of them are biases that only select experts; they are not trained by gradients, and
    `check` does not count them.
    """
    model = TransformerConfig(
        vocab_size=129_280,
        dim=7168,
        layers=61,
        heads=128,
        mla=MLA(
            query_rank=1536, kv_rank=512, nope_head_dim=128, rope_head_dim=64, value_head_dim=128
        ),
        ffn_dim=18_432,
        moe=MoE(
            experts=256,
            top_k=8,
            expert_dim=2048,
            shared_experts=1,
            first_dense=3,
            groups=8,
            top_groups=4,
            route_scale=2.5,
            router=SigmoidTopK(bias_rate=0.001),
            balance_loss=0.0,
            sequence_balance_loss=0.0001,
        ),
        norm_eps=1e-6,
        # Its YaRN scales products as a whole, those without rotation among them.
        rope_scaling=YarnScaling(factor=STRETCH, original_length=4096, attention_factor=1.0),
        attention_scale=(0.1 * log(STRETCH) + 1) ** 2 / sqrt(HEAD),
        max_sequence_length=163_840,
        init_std=0.006,
        residual_init="plain",
    )
    # 63M tokens in an update.
    batch = BatchConfig(global_size=15_360, micro_size=1, sequence_length=4096)
    return published("deepseek-v3", model, batch, lr=2.2e-4, recompute=Full())


@preset
def deepseek_tiny() -> Job:
    """A small DeepSeek-V3, trained on bytes of the standard library; under a minute."""
    model = TransformerConfig(
        dim=128,
        layers=4,
        heads=4,
        mla=MLA(query_rank=48, kv_rank=32, nope_head_dim=32, rope_head_dim=16, value_head_dim=32),
        ffn_dim=384,
        moe=MoE(
            experts=8,
            top_k=2,
            expert_dim=96,
            shared_experts=1,
            first_dense=1,
            groups=4,
            top_groups=2,
            route_scale=2.5,
            router=SigmoidTopK(bias_rate=0.001),
            balance_loss=0.0,
            sequence_balance_loss=0.0001,
        ),
        norm_eps=1e-6,
    )
    return small("deepseek-tiny", model)
