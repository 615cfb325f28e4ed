from __future__ import annotations

from unittest.mock import patch

import pytest
import torch

from setpoint.config import SetpointError
from setpoint.model.initialize import initialize
from setpoint.model.moe import experts
from setpoint.model.moe.experts import PackedExperts, UnpackedExperts, assign

from .small import small_layer, small_transformer


@pytest.mark.parametrize("activation", ["swiglu", "gelu"])
def test_packed_and_unpacked_start_equal(activation: str) -> None:
    """And so does an expert wherever it lies: each is drawn by its own name."""
    packed = small_layer({"activation": activation}).experts
    unpacked = small_layer({"activation": activation}, packed=False).experts
    names = ("gate", "up", "down") if activation == "swiglu" else ("up", "down")
    assert {name for name, _ in packed.named_parameters()} == set(names)
    for name in names:
        for expert in range(4):
            own = getattr(unpacked[str(expert)], name).weight
            assert torch.equal(getattr(packed, name)[expert], own.T)
    assert not torch.equal(packed.up[0], packed.up[1])


def test_half_of_the_experts_are_those_of_the_whole() -> None:
    whole = small_layer(dtype=torch.float32).experts
    half = PackedExperts(small_transformer(experts=2))
    part = torch.nn.ModuleDict({"experts": half})
    initialize(part, 1)
    assert torch.equal(half.down, whole.down[:2])


def test_scale_of_initialization() -> None:
    layer = PackedExperts(small_transformer({"dim": 128, "heads": 4}, expert_dim=256))
    initialize(torch.nn.ModuleDict({"experts": layer}), 1)
    assert layer.up.std().item() == pytest.approx(0.3, rel=0.02)
    assert layer.down.std().item() == pytest.approx(0.3 / 2, rel=0.02)  # two layers


def test_experts_have_no_biases() -> None:
    config = small_transformer({"ffn_bias": True}, first_dense=1, packed=False, shared_experts=1)
    names = [name for name, _ in UnpackedExperts(config).named_parameters()]
    assert names and not [name for name in names if "bias" in name]


def test_grouped_is_used_where_it_works_and_refused_in_words_elsewhere() -> None:
    used: list[str] = []

    def note(name: str):
        real = getattr(experts, name)
        return patch.object(experts, name, lambda *a: used.append(name) or real(*a))

    x, weights = torch.randn(5, 16), torch.ones(5, 1)
    assigned, _ = assign(torch.tensor([[0], [1], [2], [3], [3]]), 4)
    with note("grouped_product"), note("looped_product"):
        for way, dtype in (("auto", torch.float32), ("auto", torch.float64),
                           ("loop", torch.float32), ("grouped", torch.float32)):  # fmt: skip
            small_layer(dtype=dtype, implementation=way).experts(x.to(dtype), weights, assigned)
    grouped, looped = ["grouped_product"] * 3, ["looped_product"] * 3
    assert used == [*grouped, *looped, *looped, *grouped]
    layer = small_layer(dtype=torch.float64, implementation="grouped")
    with pytest.raises(SetpointError, match=r"model\.moe\.implementation = grouped.*float64"):
        layer(x.double().view(1, 5, 16))
