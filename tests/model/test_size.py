import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from setpoint.config.components.section import partial
from setpoint.model.attention.config import MLA
from setpoint.model.config import LayerNormConfig, MuP, RMSNormConfig
from setpoint.model.inspection import count_parameters
from setpoint.model.moe.config import MoE, SigmoidTopK, SoftmaxTopK
from setpoint.model.parameters import count_parameters_of, training_flops

from .small import VOCAB, small_config

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
