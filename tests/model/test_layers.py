import pytest
from torch import nn

from setpoint.model.layers import layers_of
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
            "hidden_size": 8,
            "intermediate_size": 16,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
        },
        "gpt2": {"n_layer": 3, "n_embd": 8, "n_head": 2},
    }[kind]
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
