"""Losses of routing, reports of layers and models, and metrics."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from setpoint.model.config import TransformerConfig
from setpoint.model.moe.config import MoE
from setpoint.model.moe.losses import (
    LayerRouting,
    balance_loss,
    combine,
    expert_metrics,
    sequence_counts,
    z_loss,
)
from setpoint.shapes.outcome import Routing

from ..small import small_model


def spread(batch: int, length: int, experts: int) -> tuple[Tensor, Tensor]:
    """Uniform scores, and choices of two that come round all experts."""
    scores = torch.full((batch, length, experts), 1 / experts)
    first = torch.arange(batch * length).view(batch, length)
    return scores, torch.stack((2 * first % experts, (2 * first + 1) % experts), dim=-1)


def of_batch(scores: Tensor, chosen: Tensor, valid: Tensor | None = None) -> Tensor:
    counts = sequence_counts(chosen, scores.shape[-1], valid).sum(dim=0, keepdim=True)
    flat = None if valid is None else valid.flatten()[None]
    return balance_loss(scores.flatten(0, 1)[None], counts, flat)


def of_sequences(scores: Tensor, chosen: Tensor, valid: Tensor | None = None) -> Tensor:
    return balance_loss(scores, sequence_counts(chosen, scores.shape[-1], valid), valid)


@pytest.mark.parametrize("experts", [2, 8])
def test_uniform_routing_costs_one(experts: int) -> None:
    scores, chosen = spread(2, 8, experts)
    assert of_batch(scores, chosen).item() == pytest.approx(1)
    assert of_sequences(scores, chosen).item() == pytest.approx(1)


def test_all_tokens_on_one_expert_cost_as_many_as_there_are() -> None:
    scores = torch.zeros(2, 5, 4)
    scores[..., 3] = 1
    chosen = torch.full((2, 5, 1), 3)
    assert of_batch(scores, chosen).item() == 4
    assert of_sequences(scores, chosen).item() == 4


def test_the_loss_of_sequences_is_not_that_of_the_batch() -> None:
    """Each sequence on an expert of its own: even in the batch, as uneven as can be in each."""
    scores = torch.zeros(2, 5, 2)
    scores[0, :, 0] = scores[1, :, 1] = 1
    chosen = torch.tensor([0, 1]).view(2, 1, 1).expand(2, 5, 1)
    assert of_batch(scores, chosen).item() == 1
    assert of_sequences(scores, chosen).item() == 2


def test_counts_carry_no_gradient_and_scores_do() -> None:
    scores = torch.softmax(torch.randn(1, 6, 4), -1).requires_grad_()
    chosen = torch.tensor([[0], [0], [1], [0], [2], [0]])[None]
    of_batch(scores, chosen).backward()
    # d/dP_i of E sum f_i P_i is E f_i, shared among the tokens of the mean.
    expected = 4 * torch.tensor([4, 1, 1, 0]) / 6 / 6
    torch.testing.assert_close(scores.grad, expected.expand(1, 6, 4))


def test_z_loss_is_the_mean_square_of_the_log_of_the_partition_function() -> None:
    logits = torch.zeros(1, 2, 4)
    logits[0, 1] = 3.0
    expected = (math.log(4) ** 2 + (3 + math.log(4)) ** 2) / 2
    assert z_loss(logits, None).item() == pytest.approx(expected)


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
    found = expert_metrics(Routing(counts, torch.tensor([0, 8]), *terms))
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
    found = expert_metrics(
        Routing(torch.zeros(1, 2, dtype=torch.int64), torch.tensor([0]), *[zero] * 3)
    )
    assert found["experts_idle"] == 2
    assert all(value == value for value in found.values())
