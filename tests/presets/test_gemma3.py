"""The build of Gemma 3 in small."""

from __future__ import annotations

from setpoint.model.attention.selection import kind_of
from setpoint.model.config import RMSNormConfig

from .published import resolved


def test_it_is_built_like_the_published_ones() -> None:
    _, model = resolved("gemma3-tiny")
    kinds = [kind_of(model, layer) for layer in range(model.layers)]
    assert kinds == ["sliding"] * 5 + ["full"]
    assert isinstance(model.norm, RMSNormConfig)
    assert (model.norm.zero_centered, model.norm_placement, model.qk_norm) == (True, "both", True)
    assert (model.rope_base, model.rope_base_sliding) == (1_000_000, 10_000)
    assert model.activation == "geglu_tanh"
    assert model.embedding_scale == model.dim**0.5
    assert model.heads * model.head_dim != model.dim
