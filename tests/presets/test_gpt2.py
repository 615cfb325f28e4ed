"""GPT-2 as published."""

from __future__ import annotations

import pytest

from .published import assert_as_published, resolved

# n_embd, n_layer, n_head
PUBLISHED = {
    "gpt2": (124_439_808, (768, 12, 12)),
    "gpt2-medium": (354_823_168, (1024, 24, 16)),
    "gpt2-large": (774_030_080, (1280, 36, 20)),
    "gpt2-xl": (1_557_611_200, (1600, 48, 25)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_shape_is_the_published_one(name: str) -> None:
    from transformers import GPT2Config

    parameters, (dim, layers, heads) = PUBLISHED[name]
    config = GPT2Config(
        vocab_size=50257,
        n_positions=1024,
        n_embd=dim,
        n_layer=layers,
        n_head=heads,
        activation_function="gelu_new",
        resid_pdrop=0.1,
        embd_pdrop=0.1,
        attn_pdrop=0.1,
        layer_norm_epsilon=1e-5,
        initializer_range=0.02,
    )
    assert_as_published(name, parameters, config)
    _, model = resolved(name)
    assert (model.activation, model.positions) == ("gelu_tanh", "learned")
    assert (model.dropout, model.embedding_dropout, model.attention_dropout) == (0.1, 0.1, 0.1)
