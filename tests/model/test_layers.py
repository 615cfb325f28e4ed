import pytest
import torch
from torch import nn

from setpoint.config import resolve
from setpoint.model.build import build_outline, evaluating, inputs_first, layers_of, parameter_kinds
from setpoint.model.config import HuggingFaceConfig, TransformerConfig
from setpoint.model.moe.config import MoE
from setpoint.model.transformer import Transformer

from .small import small_model


class Layer(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])


class Other(Layer):
    pass


class Around(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


def names(model: nn.Module) -> list[str]:
    return [name for name, _ in layers_of(model)]


@pytest.mark.parametrize("packed", [True, False])
def test_the_layers_of_a_transformer_and_not_its_experts(packed: bool) -> None:
    model = small_model(layers=3, moe=MoE(experts=4, packed=packed))
    assert names(model) == ["layers.0", "layers.1", "layers.2"]
    assert [module for _, module in layers_of(model)] == list(model.layers.values())


def test_a_single_layer_and_a_stage_without_some() -> None:
    assert names(small_model(layers=1, moe=MoE(experts=4, packed=False))) == ["layers.0"]
    stage = small_model(layers=3)
    assert isinstance(stage, Transformer)
    del stage.layers["0"]
    stage.embedding = None
    assert names(stage) == ["layers.1", "layers.2"]


@pytest.mark.parametrize(
    ("kind", "prefix"), [("llama", "model.layers."), ("gpt2", "transformer.h.")]
)
def test_of_models_of_transformers(kind: str, prefix: str) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {
        "llama": {
            "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 3,
            "num_attention_heads": 2, "num_key_value_heads": 2,
        },
        "gpt2": {"n_layer": 3, "n_embd": 8, "n_head": 2},
    }[kind]  # fmt: skip
    config = transformers.AutoConfig.for_model(kind, vocab_size=100, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config)
    assert names(Around(model)) == [f"model.{prefix}{i}" for i in range(3)]


def test_a_dictionary_of_all_things_is_passed_over_for_the_list_within() -> None:
    parts = {"words": nn.Embedding(999, 9), "h": nn.ModuleList([Layer(), Other()])}
    assert names(nn.ModuleDict({"body": nn.ModuleDict(parts)})) == ["body.h.0", "body.h.1"]


def test_embeddings_are_no_layers() -> None:
    tables = nn.ModuleList([nn.Embedding(999, 9) for _ in range(2)])
    model = nn.ModuleDict({"tables": tables, "blocks": nn.ModuleList([Layer()])})
    assert names(model) == ["blocks.0"]


def test_a_sequence_counts_where_its_members_are_alike() -> None:
    blocks = nn.Sequential(Layer(), Layer())
    assert names(nn.Sequential(nn.Embedding(999, 4), blocks, nn.Linear(4, 999))) == ["1.0", "1.1"]
    # Here the largest list is that within the layer.
    assert names(nn.Sequential(nn.Linear(4, 4), Layer())) == ["1.heads.0", "1.heads.1", "1.heads.2"]


def test_a_layer_that_takes_several_places_is_there_once() -> None:
    shared = Layer()
    assert names(nn.ModuleDict({"h": nn.ModuleList([shared, shared])})) == ["h.0"]


def test_nothing_repeats() -> None:
    assert layers_of(nn.Linear(4, 4)) == []
    assert layers_of(nn.Sequential(nn.Linear(4, 4), nn.ReLU())) == []


class ScaleNorm(nn.Module):
    """A norm of somebody's own, with one factor for each head."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(2, 4))


class NormalizedLinear(nn.Linear):
    """No norm, whatever its name begins with."""


class GatedRMSNormLayer(nn.Module):
    """Has a weight of a norm, and a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.matrix = nn.Parameter(torch.ones(4, 4))


class TopKRouter(nn.Module):
    """A router with a linear layer inside."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)


class Experts(nn.Module):
    """Experts in one tensor each for weights and biases."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.ones(3, 4, 8))
        self.up_bias = nn.Parameter(torch.ones(3, 8))


class Mixture(nn.Module):
    """A gate beside experts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 3, bias=False)
        self.experts = Experts()


class Language(nn.Module):
    """All kinds of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4)
        self.first = nn.LayerNorm(4)
        self.many = nn.GroupNorm(2, 4)
        self.batch = nn.BatchNorm1d(4)
        self.own = ScaleNorm()
        self.mixed = GatedRMSNormLayer()
        self.plain = NormalizedLinear(4, 4)
        self.gru = nn.GRU(4, 4)
        self.conv = nn.Conv1d(4, 8, 3)
        self.image = nn.Conv2d(4, 8, 3, bias=False)
        self.pair = nn.Bilinear(4, 4, 2, bias=False)
        self.mixture = Mixture()
        self.choose = TopKRouter()
        self.gate = nn.Linear(4, 4)
        self.temperature = nn.Parameter(torch.ones(1))
        self.lm_head = nn.Linear(4, 9)


def test_every_kind():
    assert parameter_kinds(Language()) == {
        "temperature": "vector",
        "table.weight": "embedding",
        "first.weight": "norm",
        "first.bias": "norm",
        "many.weight": "norm",
        "many.bias": "norm",
        "batch.weight": "norm",
        "batch.bias": "norm",
        "own.factor": "norm",
        "mixed.scale": "norm",
        "mixed.matrix": "matrix",
        "plain.weight": "matrix",
        "plain.bias": "bias",
        "gru.weight_ih_l0": "matrix",
        "gru.weight_hh_l0": "matrix",
        "gru.bias_ih_l0": "bias",
        "gru.bias_hh_l0": "bias",
        "conv.weight": "tensor",
        "conv.bias": "bias",
        "image.weight": "tensor",
        "pair.weight": "tensor",
        "mixture.gate.weight": "router",
        # Which of its dimensions are inputs, nobody knows.
        "mixture.experts.up": "tensor",
        "mixture.experts.up_bias": "bias",
        "choose.linear.weight": "router",
        "choose.linear.bias": "bias",
        "gate.weight": "matrix",
        "gate.bias": "bias",
        "lm_head.weight": "output",
        "lm_head.bias": "bias",
    }


def test_our_packed_experts_are_matrices():
    section = TransformerConfig(
        dim=16, heads=2, layers=1, max_sequence_length=8, moe={"experts": 3}
    )
    model = build_outline(resolve(section), 40)
    found = {n: k for n, k in parameter_kinds(model).items() if ".experts." in n}
    assert found and set(found.values()) == {"matrix"}
    assert {p.ndim for n, p in model.named_parameters() if n in found} == {3}
    assert inputs_first(model) == set()


def test_matrices_of_transformers_the_other_way_round():
    layers = pytest.importorskip("transformers.pytorch_utils")
    model = nn.Sequential(layers.Conv1D(6, 4), nn.Conv1d(4, 6, 1), nn.Linear(4, 6))
    assert tuple(model[0].weight.shape) == (4, 6)
    assert inputs_first(model) == {"0.weight"}
    assert inputs_first(model[0]) == {"weight"}
    assert parameter_kinds(model)["0.weight"] == "matrix"


def test_a_linear_layer_deep_inside_is_no_output():
    model = nn.Sequential(Language())
    assert parameter_kinds(model)["0.lm_head.weight"] == "matrix"


def test_a_tied_output_is_an_embedding():
    model = Language()
    model.lm_head.weight = model.table.weight
    kinds = parameter_kinds(model)
    assert kinds["table.weight"] == "embedding"
    assert "lm_head.weight" not in kinds


SMALL = {"vocab_size": 40, "num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2}
LLAMA = {**SMALL, "intermediate_size": 24, "num_key_value_heads": 1}
MOE = {**LLAMA, "num_local_experts": 3, "num_experts_per_tok": 1}


@pytest.mark.parametrize(
    ("kind", "overrides", "expected"),
    [
        (
            "llama",
            LLAMA,
            {
                "model.model.embed_tokens.weight": "embedding",
                "model.model.layers.0.self_attn.q_proj.weight": "matrix",
                "model.model.layers.0.input_layernorm.weight": "norm",
                "model.lm_head.weight": "output",
            },
        ),
        ("mixtral", MOE, {"model.model.norm.weight": "norm"}),
    ],
)
def test_models_of_transformers(kind: str, overrides: dict, expected: dict):
    pytest.importorskip("transformers")
    section = HuggingFaceConfig(config=kind, overrides=overrides, max_sequence_length=16)
    kinds = parameter_kinds(build_outline(resolve(section), 40))
    assert {name: kinds.get(name) for name in expected} == expected
    if kind == "mixtral":
        assert [name for name, each in kinds.items() if each == "router"]
        assert sorted(kinds.values()).count("output") == 1


def test_each_module_returns_to_its_own_mode():
    model = nn.Sequential(nn.Dropout(), nn.Dropout())
    model.train()
    model[1].eval()
    with pytest.raises(KeyError), evaluating(model):
        assert not any(module.training for module in model.modules())
        raise KeyError
    assert [module.training for module in model.modules()] == [True, True, False]
