"""DeepSeek-V3 as published."""

from __future__ import annotations

import pytest

from setpoint.model.moe.config import SigmoidTopK
from setpoint.model.rope.config import YarnScaling

from .published import assert_as_published, resolved


def test_the_shape_is_the_published_one() -> None:
    from transformers import DeepseekV3Config

    config = DeepseekV3Config(
        vocab_size=129280,
        hidden_size=7168,
        intermediate_size=18432,
        moe_intermediate_size=2048,
        num_hidden_layers=61,
        num_attention_heads=128,
        num_key_value_heads=128,
        n_shared_experts=1,
        n_routed_experts=256,
        routed_scaling_factor=2.5,
        kv_lora_rank=512,
        q_lora_rank=1536,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
        n_group=8,
        topk_group=4,
        num_experts_per_tok=8,
        first_k_dense_replace=3,
        norm_topk_prob=True,
        max_position_embeddings=163840,
        rms_norm_eps=1e-6,
        initializer_range=0.006,
        tie_word_embeddings=False,
    )
    # With the biases that only select: 58 layers of 256.
    assert_as_published("deepseek-v3", 671_026_419_200, config)
    _, model = resolved("deepseek-v3")
    moe = model.moe
    assert moe is not None
    assert isinstance(moe.router, SigmoidTopK)
    assert (moe.top_k, moe.groups, moe.top_groups, moe.route_scale) == (8, 8, 4, 2.5)
    assert (moe.first_dense, moe.shared_experts, moe.router.normalize) == (3, 1, True)
    # The report, section 4.2.
    assert (moe.router.bias_rate, moe.sequence_balance_loss, moe.balance_loss) == (0.001, 1e-4, 0)


def test_its_yarn_scales_products_as_a_whole() -> None:
    """In its config.json `mscale` and `mscale_all_dim` are 1.

    Their quotient scales the rotation, and the second, squared, products of queries and keys.
    """
    _, model = resolved("deepseek-v3")
    assert isinstance(model.rope_scaling, YarnScaling)
    scaling = model.rope_scaling
    assert (scaling.factor, scaling.original_length, scaling.attention_factor) == (40, 4096, 1)
    assert (scaling.beta_fast, scaling.beta_slow, model.rope_base) == (32, 1, 10_000)
    mscale = 1.3688879454113936
    assert model.attention_scale == pytest.approx(192**-0.5 * mscale**2)
