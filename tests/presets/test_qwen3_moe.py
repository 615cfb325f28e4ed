"""Qwen3 with experts as published."""

from __future__ import annotations

from setpoint.model.moe.config import SoftmaxTopK

from .published import assert_as_published, count, module_of, resolved


def test_the_shape_is_the_published_one() -> None:
    from transformers import Qwen3MoeConfig

    config = Qwen3MoeConfig(
        vocab_size=151936,
        hidden_size=2048,
        num_hidden_layers=48,
        num_attention_heads=32,
        num_key_value_heads=4,
        head_dim=128,
        intermediate_size=6144,
        moe_intermediate_size=768,
        num_experts=128,
        num_experts_per_tok=8,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        norm_topk_prob=True,
        router_aux_loss_coef=0.001,
        tie_word_embeddings=False,
        max_position_embeddings=40960,
        rms_norm_eps=1e-6,
        initializer_range=0.02,
    )
    assert_as_published("qwen3-30b-a3b", 30_532_122_624, config)
    _, model = resolved("qwen3-30b-a3b")
    assert model.moe is not None
    assert isinstance(model.moe.router, SoftmaxTopK)
    assert model.moe.router.normalize
    assert (model.moe.top_k, model.moe.balance_loss) == (8, config.router_aux_loss_coef)
    assert (model.qk_norm, model.rope_base) == (True, 1_000_000)


def test_a_token_meets_three_billion() -> None:
    """What the name calls A3B: all but the 120 experts of each layer that it does not choose."""
    left_out = 48 * 120 * 3 * 2048 * 768
    assert count(module_of("qwen3-30b-a3b")) - left_out == 3_353_032_704
