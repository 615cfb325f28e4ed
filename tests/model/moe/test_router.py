from __future__ import annotations

import pytest
import torch

from setpoint.model.initialize import initialize
from setpoint.model.moe.layer import Router, build_router

from .small import SigmoidTopK, SoftmaxTopK, small_transformer


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
