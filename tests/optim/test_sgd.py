"""The section `sgd` against torch.optim.SGD."""

from typing import Any

import pytest
import torch

from setpoint.config import ConfigError, SetpointError, resolve
from setpoint.optim.config import SGDConfig

from ..support.cases import few
from .problem import Groups, assert_resumes, groups, learnt, network


def build(given: Any, **fields: Any) -> torch.optim.Optimizer:
    return resolve(SGDConfig(**fields)).build(parameters=given)


@pytest.mark.parametrize("dtype", few([torch.float32, torch.float64], [torch.float32]))
@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, {"momentum": 0.9, "fused": True}),
        ({"momentum": 0.95, "nesterov": True}, {"momentum": 0.95, "nesterov": True, "fused": True}),
        ({"dampening": 0.2}, {"momentum": 0.9, "dampening": 0.2, "fused": True}),
        (
            {"momentum": 0.99, "implementation": "foreach"},
            {"momentum": 0.99, "foreach": True},
        ),
        (
            {"momentum": 0.8, "implementation": "loop"},
            {"momentum": 0.8, "foreach": False, "fused": False},
        ),
    ],
)
def test_a_hundred_steps_against_torch(
    fields: dict[str, Any], options: dict[str, Any], dtype: torch.dtype
) -> None:
    ours, our_losses = learnt(lambda given: build(given, **fields), dtype)
    theirs, their_losses = learnt(lambda given: torch.optim.SGD(given, **options), dtype)
    assert torch.equal(ours, theirs) and our_losses == their_losses


def test_decay_is_added_to_the_gradient() -> None:
    weight = torch.nn.Parameter(torch.tensor([2.0]))
    optimizer = build([("w", weight)], lr=0.1, momentum=0.0, weight_decay=0.5)
    weight.grad = torch.tensor([3.0])
    optimizer.step()
    assert weight.item() == pytest.approx(2.0 - 0.1 * (3.0 + 0.5 * 2.0))


def test_without_momentum_there_is_no_state() -> None:
    model = network()
    optimizer = build(groups(model), momentum=0.0)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    assert all(state.get("momentum_buffer") is None for state in optimizer.state.values())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"momentum": 0.0, "nesterov": True}, "needs momentum without dampening"),
        ({"momentum": 0.0, "dampening": 0.1}, "momentum is 0"),
    ],
)
def test_what_contradicts_itself(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve(SGDConfig(**fields))


def test_fused_where_there_is_no_kernel() -> None:
    with pytest.raises(SetpointError, match="implementation = fused"):
        build(groups(network().to("meta")), implementation="fused")


@pytest.mark.parametrize("fields", [{}, {"momentum": 0.0}, {"implementation": "foreach"}])
def test_state_returns_exactly(fields: dict[str, Any]) -> None:
    def make(given: Groups) -> torch.optim.Optimizer:
        return build(given, **fields)

    assert_resumes(make, torch.float32)


def test_short_weights_on_a_cpu_are_updated_and_not_by_the_fused_kernel() -> None:
    """PyTorch's own leaves all but the last few elements as they are, and says nothing."""
    weight = torch.nn.Parameter(torch.ones(1000, dtype=torch.bfloat16))
    weight.grad = torch.ones_like(weight)
    build([("weight", weight)], lr=0.5, momentum=0.0).step()
    assert (weight == 0.5).all()
    with pytest.raises(SetpointError, match="fused SGD does not update bf16 weights on a CPU"):
        build([("weight", weight)], implementation="fused")
