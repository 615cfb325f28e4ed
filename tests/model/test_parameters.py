"""Parameters of a transformer by its configuration: the list, and its sums against built models."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from setpoint.config.component_sections import partial
from setpoint.model.attention.config import MLA
from setpoint.model.build import count_parameters, parameter_kinds
from setpoint.model.config import LayerNormConfig, MuP, RMSNormConfig, TransformerConfig
from setpoint.model.moe.config import MoE, SigmoidTopK, SoftmaxTopK
from setpoint.model.parameters import (
    all_parameters,
    attended,
    count_parameters_of,
    embedding_rows,
    pair_size,
    parameters_of,
    predicted_tokens,
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
    counts = count_parameters_of(config, VOCAB)
    assert counts.parameters == count_parameters(same_as_built(config))
    idle = 0
    if config.moe is not None:
        width = config.ffn_dim if config.moe.expert_dim is None else config.moe.expert_dim
        expert = (3 if config.is_gated else 2) * config.dim * width
        unused = (config.moe.experts - config.moe.top_k) * expert
        idle = unused * sum(config.moe.has_experts(layer) for layer in range(config.layers))
    assert counts.active == counts.parameters - idle


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
    {"qk_norm": True, "qk_norm_pattern": (False, True, True), "kv_heads": 1, "layers": 4},
    {"qk_norm": True, "qk_norm_weights": False},
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
    return model


@pytest.mark.parametrize("changes", [*SHAPES, *MORE], ids=str)
def test_names_shapes_and_kinds_are_those_of_the_module(changes):
    same_as_built(small_config(**changes))


LENGTH = 16
FLOP_SHAPES = [
    {},
    {"tie_embeddings": True, "kv_heads": 1},
    {"layers": 5, "attention_pattern": ("sliding", "sliding", "full"), "sliding_window": 5},
    {"layers": 3, "attention_pattern": ("chunked", "full"), "attention_chunk": 5},
    {"layers": 2, "attention_pattern": ("sliding",), "sliding_window": 40},
    {"mla": MLA(**LATENT, query_rank=7)},
    {"layers": 4, "moe": MoE(experts=4, top_k=1, expert_dim=12, every=2, packed=False)},
]


def flops(config: TransformerConfig, formula: str, length: int = LENGTH) -> float:
    return training_flops(config, formula, vocab_size=VOCAB, sequence_length=length)


def met(config: TransformerConfig, length: int) -> int:
    """Pairs of a position and one that it sees, counted in masks, over all layers."""
    total = 0
    for layer in range(config.layers):
        kind = config.attention_pattern[layer % len(config.attention_pattern)]
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        if kind == "sliding":
            assert config.sliding_window is not None
            mask = mask.triu(1 - config.sliding_window)
        if kind == "chunked":
            chunks = torch.arange(length) // config.attention_chunk
            mask &= chunks[:, None] == chunks
        total += int(mask.sum())
    return total


@pytest.mark.parametrize("changes", FLOP_SHAPES)
@pytest.mark.parametrize("length", [4, 16, 17])
def test_causal_attention_counts_what_masks_leave(changes, length):
    config = small_config(**changes)
    pairs = met(config, length)
    assert attended(config, length, is_causal=True) == pair_size(config) * pairs
    counts = count_parameters_of(config, VOCAB)
    expected = 6 * counts.in_products + 6 * pair_size(config) * pairs / length
    assert flops(config, "palm_causal", length) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("changes", FLOP_SHAPES)
def test_products_are_those_torch_counts(changes):
    """Those of palm without windows in full, and of every model the products with parameters."""
    config = small_config(**changes)
    model = config.build(vocab_size=VOCAB)
    tokens = torch.zeros(3, LENGTH, dtype=torch.int64)
    # The composed attention, because torch counts nothing for the fused one on the CPU.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(tokens).sum().backward()
    attention = {"bmm": 0, "baddbmm": 0}
    for operator, count in counter.get_flop_counts()["Global"].items():
        name = str(operator).removeprefix("aten.")
        if name in attention:
            attention[name] += count
    counts = count_parameters_of(config, VOCAB)
    products = counter.get_total_flops() - sum(attention.values())
    assert products == 6 * counts.in_products * tokens.numel()
    parts = {"sliding_window", "attention_chunk"}
    if not parts & {*changes}:
        assert flops(config, "palm") * tokens.numel() == counter.get_total_flops()
    # Without a window or chunks the mask leaves (S + 1) / 2 of S positions.
    full = small_config(
        **{k: v for k, v in changes.items() if k not in parts}
        | ({"attention_pattern": ("full",)} if parts & {*changes} else {})
    )
    whole = flops(full, "palm") - 6 * counts.in_products
    halved = flops(full, "palm_causal") - 6 * counts.in_products
    assert halved / whole == pytest.approx((LENGTH + 1) / (2 * LENGTH), rel=1e-12)


@pytest.mark.parametrize("changes", FLOP_SHAPES)
def test_all_parameters_counts_those_of_the_module(changes):
    config = small_config(**changes)
    count = count_parameters(config.build(vocab_size=VOCAB))
    heads = config.layers * pair_size(config)
    assert flops(config, "all_parameters") == 6 * count + 6 * heads * LENGTH
    assert all_parameters(count, heads, LENGTH) == flops(config, "all_parameters")
    if config.mla is None:
        # As most write it: 12 L H Q S.
        twelve = 12 * config.layers * config.heads * config.head_dim * LENGTH
        assert flops(config, "all_parameters") == 6 * count + twelve


def test_a_published_figure():
    """Llama 3 8B at 8,192 tokens: 6 * 7,504,658,432 in products, and 12 * 32 * 4,096 * 8,192."""
    config = small_config(dim=4096, layers=32, heads=32, kv_heads=8, head_dim=128, ffn_dim=14336)
    found = training_flops(config, "palm", vocab_size=128256, sequence_length=8192)
    assert found == 6 * 7_504_658_432 + 12 * 32 * 4096 * 8192
