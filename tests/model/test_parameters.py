import pytest
import torch
from hypothesis import HealthCheck, given, settings

from setpoint.model.attention.config import MLA
from setpoint.model.config import LayerNormConfig, MuP, RMSNormConfig
from setpoint.model.inspection import parameter_kinds
from setpoint.model.moe.config import MoE, SigmoidTopK
from setpoint.model.parameters import parameters_of
from setpoint.optim.groups import multipliers_of

from .small import VOCAB, small_config
from .test_size import EXPERTS, LATENT, SHAPES, shapes

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
