"""What goes together in a transformer, and what has no effect: each in words."""

from typing import Any

import pytest

from setpoint.config import ConfigError
from setpoint.config.composition import compose
from setpoint.train.config import Job

from ..support.snapshots import compare

MLA = "model.mla={kv_rank=8, rope_head_dim=4, nope_head_dim=6, value_head_dim=5}"
EXPERTS = "model.moe={experts=4, expert_dim=32}"

REFUSED = {
    "empty pattern": ["model.attention_pattern=[]"],
    "no window": ['model.attention_pattern=["sliding"]'],
    "odd rotary heads": ["model.dim=30", "model.heads=2"],
    "odd rotary part": [MLA.replace("rope_head_dim=4", "rope_head_dim=5")],
    "mup of latents": [MLA, "model.mup.base_dim=8"],
    "unknown activation": ["model.activation=silu"],
}

DEAD = {
    "width rule": ["model.ffn_dim=100", "model.ffn_multiplier=2", "model.ffn_multiple_of=8"],
    "width beside experts": [EXPERTS, "model.ffn_dim=100"],
    "width rule beside experts": [EXPERTS, "model.ffn_multiplier=2"],
    "biases beside experts": [EXPERTS, "model.ffn_bias=true"],
    "rotation without rotary": [
        "model.positions=learned",
        "model.rope_base=500",
        "model.rope_base_sliding=500",
        "model.rope_scaling={type=linear, factor=2}",
    ],
    "full rotation without full layers": [
        'model.attention_pattern=["sliding"]',
        "model.sliding_window=8",
        "model.rope_base_sliding=500",
        "model.rope_base=600",
    ],
    "sliding without sliding layers": ["model.sliding_window=8", "model.rope_base_sliding=500"],
    "pattern cut before it slides": [
        "model.layers=2",
        'model.attention_pattern=["full", "full", "sliding"]',
        "model.sliding_window=8",
    ],
    "grouped queries beside latents": [
        MLA,
        "model.kv_heads=2",
        "model.head_dim=8",
        "model.qk_norm=true",
        "model.qkv_bias=true",
        "model.merge_qkv=true",
    ],
    "base head beside a scale": [
        "model.mup={base_dim=64, base_head_dim=16}",
        "model.attention_scale=0.1",
    ],
    "rounding beside a size": ["model.vocab_size=300", "model.vocab_multiple_of=64"],
}


def refusal(flags: list[str]) -> str:
    with pytest.raises(ConfigError) as caught:
        compose(Job, flags=flags).resolve()
    return str(caught.value)


def test_each_refusal_in_words():
    found = [f"== {name}\n{refusal(flags)}" for name, flags in REFUSED.items()]
    compare("model/refused", "\n\n".join(found))


def test_each_setting_without_effect_in_words():
    found = [f"== {name}\n{refusal(flags)}" for name, flags in DEAD.items()]
    compare("model/without_effect", "\n\n".join(found))


@pytest.mark.parametrize(
    "flags",
    [
        ["model.positions=learned", "model.dim=30", "model.heads=2"],
        [MLA, "model.dim=50", "model.heads=7"],
        [MLA.replace("rope_head_dim=4", "rope_head_dim=5"), "model.positions=none"],
        [EXPERTS, "model.moe.every=2", "model.ffn_dim=100", "model.ffn_bias=true"],
        ["model.moe.experts=4", "model.ffn_dim=100"],
        ["model.ffn_multiplier=2", "model.ffn_multiple_of=8"],
    ],
)
def test_what_goes_together(flags: list[str]):
    model: Any = compose(Job, flags=flags).resolve().model
    assert model.layers == 4


def test_a_width_by_a_multiplier():
    def width(*flags: str) -> int:
        model: Any = compose(Job, flags=["model.dim=96", *flags]).resolve().model
        return model.ffn_dim

    assert width() == 256
    assert width("model.activation=gelu") == 384
    assert width("model.ffn_multiplier=1.5", "model.ffn_multiple_of=1") == 384
    assert width("model.ffn_multiplier=1.3", "model.activation=relu_squared") == 512


def test_a_slip_in_a_number_does_not_hang():
    """Layers are counted by arithmetic."""
    flags = ["model.layers=10000", 'model.attention_pattern=["sliding", "full"]']
    job: Any = compose(Job, flags=[*flags, "model.sliding_window=8", "model.moe.experts=4"])
    model = job.resolve().model
    assert model.count_layers("sliding") == 5_000


@pytest.mark.parametrize("layers", range(1, 8))
def test_counting_layers_of_a_kind(layers: int):
    pattern = ("sliding", "full", "sliding")
    flags = [f"model.layers={layers}", 'model.attention_pattern=["sliding", "full", "sliding"]']
    model: Any = compose(Job, flags=[*flags, "model.sliding_window=8"]).resolve().model
    kinds = [pattern[layer % 3] for layer in range(layers)]
    assert model.count_layers("sliding") == kinds.count("sliding")
    assert model.count_layers("full") == kinds.count("full")
