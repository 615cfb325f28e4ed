from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.config import ConfigError, resolve
from setpoint.config.composition import compose
from setpoint.config.words.names import nearest_divisors
from setpoint.model.config import TransformerConfig
from setpoint.train.config import Job

from ..support.snapshots import compare, refusals, refused


def resolved(**fields):
    return resolve(TransformerConfig(**{"max_sequence_length": 8, **fields}))


def problems(**fields):
    with pytest.raises(ConfigError) as error:
        resolved(**fields)
    return error.value.problems


def test_derived_values():
    config = resolved(dim=512, heads=8)
    assert (config.kv_heads, config.head_dim) == (8, 64)
    assert config.ffn_dim == 1408  # 8/3 * 512 = 1365.3, and 22 * 64 = 1408
    assert config.init_std == pytest.approx(0.02795, rel=1e-3)
    assert resolved(dim=4096, heads=8).init_std == pytest.approx(0.00988, rel=1e-3)


@given(st.integers(1, 2**20), st.integers(1, 300))
def test_ffn_dim_is_the_smallest_multiple_that_holds_eight_thirds(half, multiple):
    width = resolved(dim=2 * half, heads=1, ffn_multiple_of=multiple).ffn_dim
    assert width % multiple == 0
    assert 3 * width >= 16 * half > 3 * (width - multiple)


def test_derivation_sees_what_is_overridden_later():
    draft = TransformerConfig(dim=64, heads=4, max_sequence_length=8)
    draft.dim = 128
    assert resolve(draft).head_dim == 32


def test_what_is_proposed_for_heads_that_do_not_divide_the_width_is_valid():
    (problem,) = problems(dim=100, heads=6)
    assert problem.valid == ("5", "2", "10")
    assert "set dim to 96 or 108" in problem.hint
    for heads in problem.valid:
        assert resolved(dim=100, heads=int(heads)).head_dim % 2 == 0
    for dim in (96, 108):
        assert resolved(dim=dim, heads=6).head_dim % 2 == 0


def test_sequence_length_has_to_come_from_somewhere():
    with refused(ConfigError):
        resolve(TransformerConfig())


MLA = "model.mla={kv_rank=8, rope_head_dim=4, nope_head_dim=6, value_head_dim=5}"
EXPERTS = "model.moe={experts=4, expert_dim=32}"

REFUSED = {
    "empty pattern": ["model.attention_pattern=[]"],
    "no window": ['model.attention_pattern=["sliding"]'],
    "heads that do not divide the width": ["model.dim=100", "model.heads=6"],
    "more heads than the width allows": ["model.dim=8", "model.heads=16"],
    "an odd width": ["model.dim=99", "model.heads=4"],
    "odd given heads": ["model.dim=64", "model.heads=4", "model.head_dim=33"],
    "key-value heads that do not divide": ["model.dim=96", "model.heads=6", "model.kv_heads=4"],
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
        MLA, "model.kv_heads=2", "model.head_dim=8", "model.qk_norm=true", "model.qkv_bias=true",
        "model.merge_qkv=true",
    ],
    "base head beside a scale": [
        "model.mup={base_dim=64, base_head_dim=16}",
        "model.attention_scale=0.1",
    ],
    "rounding beside a size": ["model.vocab_size=300", "model.vocab_multiple_of=64"],
}  # fmt: skip


@pytest.mark.parametrize(("name", "cases"), [("refused", REFUSED), ("without_effect", DEAD)])
def test_each_refusal_in_words(name: str, cases: dict[str, list[str]]):
    jobs = {case: compose(Job, flags=flags).resolve for case, flags in cases.items()}
    compare(f"model/{name}", refusals(jobs))


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


@pytest.mark.parametrize("layers", [1, 2, 7])
def test_counting_layers_of_a_kind(layers: int):
    pattern = ("sliding", "full", "sliding")
    flags = [f"model.layers={layers}", 'model.attention_pattern=["sliding", "full", "sliding"]']
    model: Any = compose(Job, flags=[*flags, "model.sliding_window=8"]).resolve().model
    kinds = [pattern[layer % 3] for layer in range(layers)]
    assert model.count_layers("sliding") == kinds.count("sliding")
    assert model.count_layers("full") == kinds.count("full")


@given(st.integers(1, 500), st.integers(1, 600))
def test_against_trying_all(number, to):
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    expected = sorted(divisors, key=lambda d: (abs(d - to), d))[:3]
    assert list(nearest_divisors(number, to)) == expected
