"""Llama 3 as published."""

from __future__ import annotations

import pytest

from setpoint.model.rope.config import Llama3Scaling

from .published import assert_as_published, resolved

# hidden_size, num_hidden_layers, num_attention_heads, intermediate_size, tied, factor of RoPE
PUBLISHED = {
    "llama3-1b": (1_235_814_400, (2048, 16, 32, 8192, True, 32.0)),
    "llama3-3b": (3_212_749_824, (3072, 28, 24, 8192, True, 32.0)),
    "llama3-8b": (8_030_261_248, (4096, 32, 32, 14336, False, 8.0)),
    "llama3-70b": (70_553_706_496, (8192, 80, 64, 28672, False, 8.0)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_shape_is_the_published_one(name: str) -> None:
    from transformers import LlamaConfig

    parameters, (dim, layers, heads, ffn_dim, tied, factor) = PUBLISHED[name]
    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=dim,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        intermediate_size=ffn_dim,
        tie_word_embeddings=tied,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        initializer_range=0.02,
    )
    assert_as_published(name, parameters, config)
    _, model = resolved(name)
    assert model.rope_base == 500000
    assert model.rope_scaling == Llama3Scaling(
        factor=factor, low_frequency_factor=1, high_frequency_factor=4, original_length=8192
    )
