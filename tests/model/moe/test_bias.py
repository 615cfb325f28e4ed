from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from setpoint.model.moe.config import SigmoidTopK
from setpoint.model.moe.layer import bias_factor, update_biases

from .small import small_layer


def layers(**router: object) -> nn.ModuleList:
    return nn.ModuleList(small_layer(router=SigmoidTopK(**router)) for _ in range(2))


def test_one_step_against_the_load() -> None:
    model = layers(bias_rate=0.25)
    update_biases(model, torch.tensor([[4, 0, 2, 2], [1, 1, 1, 5]]), 0.0)
    assert model[0].router.bias.tolist() == [-0.25, 0.25, 0.0, 0.0]
    assert model[1].router.bias.tolist() == [0.25, 0.25, 0.25, -0.25]
    update_biases(model, torch.tensor([[4, 0, 2, 2], [2, 2, 2, 2]]), 0.0)
    assert model[0].router.bias.tolist() == [-0.5, 0.5, 0.0, 0.0]
    assert model[1].router.bias.tolist() == [0.25, 0.25, 0.25, -0.25]


def test_the_size_of_counts_does_not_matter() -> None:
    """Whole numbers above 2^24 would be rounded in fp32."""
    model = layers(bias_rate=0.5)
    counts = torch.tensor([[2**30 + 1, 2**30 - 1, 2**30, 2**30]] * 2)
    update_biases(model, counts, 0.0)
    assert model[0].router.bias.tolist() == [-0.5, 0.5, 0.0, 0.0]


def test_models_without_biases_are_left_alone() -> None:
    model = nn.ModuleList([small_layer()])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    update_biases(model, torch.tensor([[4, 0, 2, 2]]), 0.0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_schedules() -> None:
    assert [bias_factor("constant", at) for at in (0.0, 0.5, 1.0)] == [1, 1, 1]
    decay = [bias_factor("cosine_decay", at) for at in (0.0, 0.25, 0.5, 1.0)]
    assert decay == pytest.approx([1, (1 + math.sqrt(0.5)) / 2, 0.5, 0])
    warmup = [bias_factor("linear_warmup", at) for at in (0.0, 0.05, 0.1, 0.6)]
    assert warmup == pytest.approx([0, 0.5, 1, 1])


def test_the_rate_follows_the_schedule() -> None:
    model = layers(bias_rate=0.5, bias_schedule="linear_warmup")
    update_biases(model, torch.tensor([[4, 0, 2, 2]] * 2), 0.02)
    torch.testing.assert_close(model[0].router.bias, torch.tensor([-0.1, 0.1, 0.0, 0.0]))


def test_a_skewed_stream_becomes_even() -> None:
    """Tokens that all like the same experts: after some updates the load is nearly even."""
    layer = small_layer(router=SigmoidTopK(bias_rate=0.02), experts=8)
    generator = torch.Generator().manual_seed(0)
    offset = 0.3 * torch.randn(16, generator=generator, dtype=torch.float64)
    worst: list[float] = []
    for _ in range(60):
        x = torch.randn(1, 512, 16, generator=generator, dtype=torch.float64) * 0.5 + offset
        _, routing = layer(x)
        load = routing.counts.double()
        worst.append((load.max() / load.mean()).item())
        update_biases(layer, routing.counts[None], 0.0)
    assert worst[0] > 1.7
    assert sum(worst[-20:]) / 20 < 1.3
