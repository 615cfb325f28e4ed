"""Routers, their choices, and the biases that balance load."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from setpoint.model.initialize import initialize
from setpoint.model.moe.layer import Router, bias_factor, build_router, choose, update_biases

from .small import SigmoidTopK, SoftmaxTopK, small_layer, small_transformer

SCORES = torch.tensor([[0.1, 0.9, 0.7, 0.6, 0.8, 0.0]])


def test_without_groups_the_highest() -> None:
    assert choose(SCORES, 3, 1, 1, rank_by=2).tolist() == [[1, 4, 2]]


def test_groups_by_their_best_expert() -> None:
    # Best of the three pairs: 0.9, 0.7, 0.8.
    assert choose(SCORES, 3, 3, 2, rank_by=1).tolist() == [[1, 4, 0]]
    assert choose(SCORES, 1, 3, 1, rank_by=1).tolist() == [[1]]


def test_groups_by_the_sum_of_their_best_two() -> None:
    # Sums of the three pairs: 1.0, 1.3, 0.8.
    assert choose(SCORES, 3, 3, 2, rank_by=2).tolist() == [[1, 2, 3]]
    assert choose(SCORES, 2, 3, 1, rank_by=2).tolist() == [[2, 3]]


def test_groups_of_one_expert() -> None:
    assert choose(SCORES, 2, 6, 2, rank_by=2).tolist() == [[1, 4]]


def test_scores_below_zero_do_not_let_other_groups_in() -> None:
    """A biased score may be negative: what is left out must not count as zero."""
    scores = torch.tensor([[-0.1, -0.5, -0.4, -0.6]])
    assert choose(scores, 2, 2, 1, rank_by=2).tolist() == [[0, 1]]


def test_no_gradient() -> None:
    scores = SCORES.clone().requires_grad_()
    assert not choose(scores, 2, 3, 2, rank_by=1).requires_grad


def router(**moe: object) -> Router:
    built = build_router(small_transformer(**moe))
    initialize(built, 1)
    assert isinstance(built, Router)
    return built


def test_weights_are_the_probabilities_that_were_chosen() -> None:
    plain, normal = router(router=SoftmaxTopK(normalize=False)), router(router=SoftmaxTopK())
    x = torch.randn(9, 16)
    scores = torch.softmax(x @ plain.weight.T, dim=-1)
    highest = scores.topk(2)
    choice = plain(x)
    torch.testing.assert_close(choice.weights, highest.values)
    assert torch.equal(choice.experts, highest.indices)
    torch.testing.assert_close(choice.scores, scores)
    torch.testing.assert_close(normal(x).weights.sum(-1), torch.ones(9))


def test_the_bias_changes_the_choice_and_no_weight() -> None:
    built = router(router=SigmoidTopK(normalize=False))
    x = torch.randn(9, 16)
    assert built.bias is not None
    built.bias[0] = 2.0
    choice = built(x)
    scores = torch.sigmoid(x @ built.weight.T)
    assert (choice.experts == 0).any(dim=1).all()
    torch.testing.assert_close(choice.weights, scores.gather(1, choice.experts))
    torch.testing.assert_close(choice.scores, scores / scores.sum(-1, keepdim=True))


def test_route_scale_multiplies_the_weights() -> None:
    x = torch.randn(9, 16)
    scaled = router(router=SigmoidTopK(), route_scale=2.5)(x)
    torch.testing.assert_close(scaled.weights, router(router=SigmoidTopK())(x).weights * 2.5)


def test_scores_so_small_that_their_sum_is_zero_give_no_nan() -> None:
    built = router(router=SigmoidTopK())
    choice = built.decide(torch.full((2, 4), -200.0))
    assert not choice.weights.any() and not choice.scores.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_it_computes_in_fp32_at_least_and_the_bias_stays_fp32(dtype: torch.dtype) -> None:
    built = router(router=SigmoidTopK())
    assert built.bias is not None
    built.bias.fill_(0.1234567)
    built.to(dtype)
    assert built.weight.dtype == dtype
    assert built.bias.dtype == torch.float32 and built.bias[0] == torch.tensor(0.1234567)
    choice = built(torch.randn(3, 16, dtype=dtype))
    wanted = torch.float64 if dtype == torch.float64 else torch.float32
    assert choice.logits.dtype == choice.weights.dtype == wanted


def test_the_bias_is_saved_and_is_no_parameter() -> None:
    built = router(router=SigmoidTopK())
    assert set(built.state_dict()) == {"weight", "bias"}
    assert [name for name, _ in built.named_parameters()] == ["weight"]
    assert set(router().state_dict()) == {"weight"}


def test_the_bias_starts_at_zero_on_the_way_through_the_meta_device() -> None:
    with torch.device("meta"):
        built = build_router(small_transformer(router=SigmoidTopK()))
    built.to_empty(device="cpu")
    built.bias.fill_(7.0)
    initialize(built, 1)
    expected = router(router=SigmoidTopK())
    assert built.bias.dtype == torch.float32 and not built.bias.any()
    assert torch.equal(built.weight, expected.weight)


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
