"""Losses of routing, reports of layers and models, and metrics."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from setpoint.model.config import TransformerConfig
from setpoint.model.initialize import initialize
from setpoint.model.moe.config import MoE
from setpoint.model.moe.layer import (
    LayerRouting,
    Router,
    balance_loss,
    bias_factor,
    build_router,
    choose,
    combine,
    sequence_counts,
    update_biases,
    z_loss,
)
from setpoint.shapes.outcome import Routing

from ..small import small_model
from .small import SigmoidTopK, small_layer, small_transformer


def of_batch(scores: Tensor, chosen: Tensor, valid: Tensor | None = None) -> Tensor:
    counts = sequence_counts(chosen, scores.shape[-1], valid).sum(dim=0, keepdim=True)
    flat = None if valid is None else valid.flatten()[None]
    return balance_loss(scores.flatten(0, 1)[None], counts, flat)


def of_sequences(scores: Tensor, chosen: Tensor, valid: Tensor | None = None) -> Tensor:
    return balance_loss(scores, sequence_counts(chosen, scores.shape[-1], valid), valid)


def test_the_loss_of_sequences_is_not_that_of_the_batch() -> None:
    """Each sequence on an expert of its own: even in the batch, as uneven as can be in each."""
    scores = torch.zeros(2, 5, 2)
    scores[0, :, 0] = scores[1, :, 1] = 1
    chosen = torch.tensor([0, 1]).view(2, 1, 1).expand(2, 5, 1)
    assert of_batch(scores, chosen).item() == 1
    assert of_sequences(scores, chosen).item() == 2


def test_padding_takes_no_part() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 6, 4, generator=generator)
    scores, chosen = torch.softmax(logits, -1), logits.topk(2).indices
    valid = torch.ones(2, 6, dtype=torch.bool)
    valid[:, 4:] = False
    for ours, theirs in (
        (of_batch(scores, chosen, valid), of_batch(scores[:, :4], chosen[:, :4])),
        (of_sequences(scores, chosen, valid), of_sequences(scores[:, :4], chosen[:, :4])),
        (z_loss(logits, valid), z_loss(logits[:, :4], None)),
    ):
        torch.testing.assert_close(ours, theirs)


def report(balance: float, sequence: float, z: float) -> LayerRouting:
    terms = (torch.tensor(term, requires_grad=True) for term in (balance, sequence, z))
    return LayerRouting(torch.tensor([1, 3]), torch.tensor(2), *terms)


CPU = torch.device("cpu")


def model_of(layers: int, **moe: Any) -> TransformerConfig:
    return TransformerConfig(dim=8, layers=layers, heads=1, moe=MoE(experts=2, **moe))


def test_losses_are_weighed_once_and_summed_over_layers() -> None:
    config = model_of(2, balance_loss=0.1, sequence_balance_loss=0.01, router_z_loss=0.001)
    layers = [report(1.0, 2.0, 3.0), report(4.0, 5.0, 6.0)]
    auxiliary, routing = combine(config, dict(enumerate(layers)), CPU)
    assert auxiliary is not None
    assert auxiliary.item() == pytest.approx(0.1 * 5 + 0.01 * 7 + 0.001 * 9)
    assert [term.item() for term in routing[2:]] == [5, 7, 9]
    assert routing.counts.tolist() == [[1, 3], [1, 3]]
    assert routing.dropped.tolist() == [2, 2]
    assert not any(tensor.requires_grad for tensor in routing)
    auxiliary.backward()
    gradients = [term.grad.item() for term in layers[1][2:]]
    assert gradients == pytest.approx([0.1, 0.01, 0.001])


def test_without_weights_nothing_is_added() -> None:
    auxiliary, routing = combine(model_of(1, balance_loss=0.0), {0: report(1.0, 2.0, 3.0)}, CPU)
    assert auxiliary is None and routing.counts.tolist() == [[1, 3]]


def test_a_stage_reports_zeros_for_layers_of_others() -> None:
    auxiliary, routing = combine(model_of(3), {1: report(1.0, 2.0, 3.0)}, CPU)
    assert auxiliary is not None
    assert routing.counts.tolist() == [[0, 0], [1, 3], [0, 0]]
    assert routing.dropped.tolist() == [0, 2, 0]
    auxiliary, routing = combine(model_of(3), {}, CPU)
    assert auxiliary is None and not any(tensor.any() for tensor in routing)


def test_the_model_reports_its_layers_in_order() -> None:
    moe = MoE(experts=4, every=2, first_dense=2)
    model = small_model(layers=5, moe=moe)
    sparse = [int(n) for n, layer in model.layers.items() if hasattr(layer.feed_forward, "router")]
    assert sparse == [3]
    model = small_model(layers=4, moe=MoE(experts=4, every=2))
    tokens = torch.arange(12).view(2, 6)
    outcome = model(tokens, head=lambda hidden, projection: projection.logits(hidden))
    assert outcome.routing is not None and outcome.routing.counts.shape == (2, 4)
    assert outcome.routing.counts.sum(1).tolist() == [24, 24]
    assert outcome.auxiliary.item() == pytest.approx(0.01 * outcome.routing.balance.item())
    assert torch.equal(outcome.result, model(tokens))
    quiet = model.eval()(tokens, head=lambda hidden, projection: projection.logits(hidden))
    assert quiet.auxiliary is None and quiet.routing is None


def test_of_two_layers() -> None:
    counts = torch.tensor([[4, 4, 4, 4], [12, 4, 0, 0]])
    terms = (torch.tensor(2.5), torch.tensor(3.0), torch.tensor(8.0))
    found = Routing(counts, torch.tensor([0, 8]), *terms).metrics()
    assert found == {
        "expert_load": pytest.approx((1 + 3) / 2),
        "expert_load_worst": 3.0,
        "experts_idle": 2.0,
        "expert_drops": 0.25,
        "balance_loss": 1.25,
        "sequence_balance_loss": 1.5,
        "router_z_loss": 4.0,
    }


def test_of_nothing_but_padding() -> None:
    zero = torch.tensor(0.0)
    counts = torch.zeros(1, 2, dtype=torch.int64)
    found = Routing(counts, torch.tensor([0]), *[zero] * 3).metrics()
    assert found["experts_idle"] == 2
    assert all(value == value for value in found.values())


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


def test_scores_below_zero_do_not_let_other_groups_in() -> None:
    """A biased score may be negative: what is left out must not count as zero."""
    scores = torch.tensor([[-0.1, -0.5, -0.4, -0.6]])
    assert choose(scores, 2, 2, 1, rank_by=2).tolist() == [[0, 1]]


def router(**moe: object) -> Router:
    built = build_router(small_transformer(**moe))
    initialize(built, 1)
    assert isinstance(built, Router)
    return built


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
