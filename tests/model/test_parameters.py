"""Parameters of a transformer by its configuration: the list, and its sums against built models."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from setpoint.config import SetpointError
from setpoint.config.components import partial
from setpoint.model.attention.config import MLA
from setpoint.model.config import LayerNormConfig, MuP, RMSNormConfig
from setpoint.model.layers import count_parameters, parameter_kinds
from setpoint.model.moe.config import MoE, SigmoidTopK, SoftmaxTopK
from setpoint.model.parameters import (
    count_parameters_of,
    embedding_rows,
    parameters_of,
    predicted_tokens,
    require_fit,
    training_flops,
    vocab_error,
)
from setpoint.optim.grouping import multipliers_of

from .small import VOCAB, small_config


@pytest.mark.parametrize(
    ("fields", "rows", "predicted"),
    [
        ({}, 257, 257),
        ({"vocab_multiple_of": 64}, 320, 257),
        ({"vocab_multiple_of": 257}, 257, 257),
        ({"vocab_size": 300}, 300, 300),
        ({"vocab_size": 257}, 257, 257),
    ],
)
def test_rows(fields, rows, predicted):
    config = small_config(**fields)
    assert embedding_rows(config, 257) == rows
    assert predicted_tokens(config, 257) == predicted
    assert vocab_error(config, 257) is None
    require_fit(config, 257)


def test_too_few():
    config = small_config(vocab_size=256)
    assert "256 rows do not hold the 257 tokens" in (vocab_error(config, 257) or "")
    with pytest.raises(SetpointError, match=r"model\.vocab_size = 256: .* valid: 257 or more"):
        require_fit(config, 257)


EXPERTS = {"experts": 5, "top_k": 2, "expert_dim": 12}
LATENT = {"kv_rank": 9, "rope_head_dim": 4, "nope_head_dim": 6, "value_head_dim": 5}

SHAPES = [
    {},
    {"tie_embeddings": True},
    {"layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 16},
    {"layers": 3, "dim": 48, "kv_heads": 6, "ffn_dim": 7},
    {"activation": "gelu", "ffn_bias": True, "vocab_multiple_of": 16},
    {"merge_qkv": True, "qkv_bias": True, "attention_output_bias": True, "vocab_size": 50},
    # A module for each expert, because torch counts nothing for the grouped product.
    {"moe": MoE(**EXPERTS, shared_experts=2, every=2, packed=False), "layers": 4},
    {"mla": MLA(**LATENT, query_rank=7)},
]


@pytest.mark.parametrize("changes", SHAPES)
def test_parameters_equal_those_of_the_module(changes):
    config = small_config(**changes)
    model = config.build(vocab_size=VOCAB)
    assert count_parameters_of(config, VOCAB).parameters == count_parameters(model)


NORMS = [
    RMSNormConfig(),
    RMSNormConfig(zero_centered=True),
    LayerNormConfig(),
    LayerNormConfig(bias=False),
]
ROUTERS = [SoftmaxTopK(), SigmoidTopK()]


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, object]:
    """Any combination of the options that decide how many parameters there are."""
    flags = ("tie_embeddings", "ffn_bias", "attention_output_bias")
    layers, kv_heads = draw(st.integers(1, 5)), draw(st.sampled_from((1, 2, 4)))
    fields = {
        **{name: draw(st.booleans()) for name in flags},
        "layers": layers,
        "dim": draw(st.sampled_from((8, 24))),
        "heads": 4,
        "kv_heads": kv_heads,
        "head_dim": draw(st.sampled_from((2, 6))),
        "ffn_dim": draw(st.integers(1, 9)),
        "norm": draw(st.sampled_from(NORMS)),
        "norm_placement": draw(st.sampled_from(("pre", "post", "both"))),
        "activation": draw(st.sampled_from(("swiglu", "relu_squared"))),
        "positions": draw(st.sampled_from(("rotary", "learned", "none"))),
        "mup": draw(st.sampled_from((None, MuP(base_dim=4)))),
    }
    if draw(st.booleans()):
        fields["vocab_size"] = draw(st.integers(VOCAB, 60))
    else:
        fields["vocab_multiple_of"] = draw(st.integers(1, 20))
    if draw(st.booleans()):
        rank = draw(st.sampled_from((None, 3)))
        del fields["kv_heads"], fields["head_dim"], fields["mup"]
        fields["mla"] = MLA(**LATENT, query_rank=rank)
    else:
        fields |= {name: draw(st.booleans()) for name in ("qk_norm", "qkv_bias", "merge_qkv")}
    if draw(st.booleans()):
        experts = draw(st.integers(1, 5))
        every = draw(st.integers(1, layers))
        last = layers // every * every - 1
        fields["moe"] = MoE(
            experts=experts,
            top_k=draw(st.integers(1, experts)),
            shared_experts=draw(st.integers(0, 2)),
            every=every,
            first_dense=draw(st.integers(0, last)),
            packed=draw(st.booleans()),
            router=draw(st.sampled_from(ROUTERS)),
        )
        if fields["moe"].layers_with_experts(layers) == layers:
            del fields["ffn_bias"]
    return fields


@settings(
    max_examples=60, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(shapes())
def test_parameters_of_any_model(fields):
    config = small_config(**fields)
    with torch.device("meta"):
        model = config.build(vocab_size=VOCAB)
    counts = count_parameters_of(config, VOCAB)
    assert counts.parameters == count_parameters(model)
    idle = 0
    if config.moe is not None:
        width = config.ffn_dim if config.moe.expert_dim is None else config.moe.expert_dim
        expert = (3 if config.is_gated else 2) * config.dim * width
        unused = (config.moe.experts - config.moe.top_k) * expert
        idle = unused * sum(config.moe.has_experts(layer) for layer in range(config.layers))
    assert counts.active == counts.parameters - idle


@pytest.mark.parametrize("changes", SHAPES)
def test_flops_equal_those_torch_counts(changes):
    config = small_config(**changes)
    model = config.build(vocab_size=VOCAB)
    tokens = torch.zeros(3, 16, dtype=torch.int64)
    # The composed attention, because torch counts nothing for the fused one on the CPU.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(tokens).sum().backward()
    flops = training_flops(config, "palm", vocab_size=VOCAB, sequence_length=16)
    assert counter.get_total_flops() == flops * tokens.numel()


def test_windows_bound_what_attention_costs():
    def flops(length: int, **changes) -> float:
        config = small_config(layers=5, **changes)
        return training_flops(config, "palm", vocab_size=VOCAB, sequence_length=length)

    windows = {"attention_pattern": ("sliding", "sliding", "full"), "sliding_window": 8}
    assert flops(8, **windows) == flops(8)
    # Layers 0, 1, 3 and 4 slide: each costs 12 * heads * head_dim * (64 - 8) less.
    assert flops(64) - flops(64, **windows) == 4 * 12 * 6 * 4 * 56


def test_a_foreign_norm_keeps_its_size_to_itself():
    section = partial(torch.nn.LayerNorm)
    assert not small_config(norm=section).parameters_known
    assert small_config().parameters_known


def test_count_takes_shared_once():
    layer = torch.nn.Linear(3, 4)
    module = torch.nn.Sequential(layer, layer)
    assert count_parameters(module) == 16


MORE = [
    {"positions": "learned", "tie_embeddings": True, "norm": LayerNormConfig()},
    {"norm": LayerNormConfig(bias=False), "norm_placement": "post", "layers": 1},
    {"norm": RMSNormConfig(zero_centered=True), "norm_placement": "both", "qk_norm": True},
    {"qk_norm": True, "qk_norm_across_heads": True, "kv_heads": 1, "norm_placement": "post"},
    {"qk_norm": True, "merge_qkv": True, "qkv_bias": True, "norm": LayerNormConfig()},
    {"mla": MLA(**LATENT), "attention_output_bias": True, "norm": LayerNormConfig()},
    {"mla": MLA(**LATENT, query_rank=5), "moe": MoE(experts=3), "activation": "relu_squared"},
    {"moe": MoE(**EXPERTS, router=SigmoidTopK(), shared_experts=1, first_dense=1), "layers": 3},
    {"moe": MoE(experts=3, shared_experts=2, shared_gate=True)},
    {"attention_sinks": True, "moe": MoE(experts=3, bias=True), "mup": MuP(base_dim=8)},
    {"moe": MoE(experts=3, bias=True, packed=False), "activation": "gelu"},
    {"moe": MoE(**EXPERTS, packed=False, every=2), "ffn_bias": True, "activation": "gelu"},
    {"mup": MuP(base_dim=8), "moe": MoE(experts=3)},
]


def same_as_built(config) -> None:
    with torch.device("meta"):
        model = config.build(vocab_size=VOCAB)
    listed = list(parameters_of(config, VOCAB))
    built = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert [(each.name, each.shape) for each in listed] == list(built.items())
    assert {each.name: each.kind for each in listed} == parameter_kinds(model)
    rates = {each.name: each.rate for each in listed if each.rate != 1.0}
    assert rates == multipliers_of(model)


@pytest.mark.parametrize("changes", [*SHAPES, *MORE], ids=str)
def test_names_shapes_and_kinds_are_those_of_the_module(changes):
    same_as_built(small_config(**changes))


@given(shapes())
@settings(
    max_examples=60, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
def test_of_any_configuration(changes):
    same_as_built(small_config(**changes))


def test_no_torch_is_needed():
    names = [each.name for each in parameters_of(small_config(layers=1), 5)]
    assert names == [
        "embedding.weight",
        "layers.0.attention_norm.weight",
        "layers.0.attention.query.weight",
        "layers.0.attention.key.weight",
        "layers.0.attention.value.weight",
        "layers.0.attention.output.weight",
        "layers.0.feed_forward_norm.weight",
        "layers.0.feed_forward.gate.weight",
        "layers.0.feed_forward.up.weight",
        "layers.0.feed_forward.down.weight",
        "norm.weight",
        "output.weight",
    ]
