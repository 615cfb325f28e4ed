"""Qwen3 without experts as published."""

from __future__ import annotations

import pytest

from .published import assert_as_published, resolved

# hidden_size, num_hidden_layers, num_attention_heads, intermediate_size, tied
PUBLISHED = {
    "qwen3-0-6b": (596_049_920, (1024, 28, 16, 3072, True)),
    "qwen3-1-7b": (1_720_574_976, (2048, 28, 16, 6144, True)),
    "qwen3-4b": (4_022_468_096, (2560, 36, 32, 9728, True)),
    "qwen3-8b": (8_190_735_360, (4096, 36, 32, 12288, False)),
    "qwen3-14b": (14_768_307_200, (5120, 40, 40, 17408, False)),
    "qwen3-32b": (32_762_123_264, (5120, 64, 64, 25600, False)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_shape_is_the_published_one(name: str) -> None:
    from transformers import Qwen3Config

    parameters, (dim, layers, heads, ffn_dim, tied) = PUBLISHED[name]
    config = Qwen3Config(
        vocab_size=151936,
        hidden_size=dim,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=ffn_dim,
        tie_word_embeddings=tied,
        max_position_embeddings=40960,
        rms_norm_eps=1e-6,
        initializer_range=0.02,
    )
    assert_as_published(name, parameters, config)
    _, model = resolved(name)
    assert (model.rope_base, model.rope_scaling, model.qk_norm) == (1_000_000, None, True)
