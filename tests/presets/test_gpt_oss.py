"""gpt-oss as published."""

from __future__ import annotations

import pytest

from setpoint.model.attention.selection import kind_of
from setpoint.model.rope.config import YarnScaling

from .published import assert_as_published, resolved

SIZES = {
    "gpt-oss-20b": (20_914_757_184, 24, 32),
    "gpt-oss-120b": (116_829_156_672, 36, 128),
}


@pytest.mark.parametrize("name", SIZES)
def test_the_shape_is_the_published_one(name: str) -> None:
    from transformers import GptOssConfig

    parameters, layers, experts = SIZES[name]
    config = GptOssConfig(
        vocab_size=201088,
        hidden_size=2880,
        intermediate_size=2880,
        num_hidden_layers=layers,
        num_local_experts=experts,
        num_experts_per_tok=4,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=64,
        attention_bias=True,
        tie_word_embeddings=False,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        initializer_range=0.02,
    )
    assert_as_published(name, parameters, config)
    _, model = resolved(name)
    assert model.moe is not None
    assert (model.moe.top_k, model.moe.bias, model.attention_sinks) == (4, True, True)
    assert [kind_of(model, layer) for layer in range(3)] == ["sliding", "full", "sliding"]
    assert (model.sliding_window, model.rope_base) == (128, 150_000)
    scaling = model.rope_scaling
    assert isinstance(scaling, YarnScaling)
    assert (scaling.factor, scaling.original_length, scaling.truncate) == (32, 4096, False)


@pytest.mark.parametrize("name", SIZES)
def test_it_is_written_as_gpt_oss(name: str) -> None:
    """All of it is what the class of transformers computes, so that its weights load and export."""
    from setpoint.model.pretrained.config_json import family_for

    assert family_for(resolved(name)[1]).model_type == "gpt_oss"
