from __future__ import annotations

from typing import Any

import pytest
import torch

from setpoint.model.config import TransformerConfig
from setpoint.model.moe.config import MoE
from setpoint.model.moe.losses import LayerRouting, combine

from ..small import small_model


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
