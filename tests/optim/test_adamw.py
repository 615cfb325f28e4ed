"""The section `adamw` against torch.optim.AdamW."""

from typing import Any

import pytest
import torch
from torch import nn

from setpoint.config import SetpointError, resolve
from setpoint.optim.config import AdamWConfig

from ..support.cases import few
from .problem import Groups, assert_resumes, groups, learnt, network


def build(given: Any, **fields: Any) -> torch.optim.Optimizer:
    return resolve(AdamWConfig(**fields)).build(parameters=given)


@pytest.mark.parametrize("dtype", few([torch.float32, torch.float64], [torch.float32]))
@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, {"betas": (0.9, 0.95), "fused": True}),
        ({"implementation": "fused"}, {"betas": (0.9, 0.95), "fused": True}),
        ({"implementation": "foreach"}, {"betas": (0.9, 0.95), "foreach": True}),
        ({"implementation": "loop"}, {"betas": (0.9, 0.95), "foreach": False, "fused": False}),
        (
            {"amsgrad": True, "betas": (0.8, 0.9), "eps": 1e-4},
            {"amsgrad": True, "betas": (0.8, 0.9), "eps": 1e-4, "fused": True},
        ),
    ],
)
def test_a_hundred_steps_against_torch(
    fields: dict[str, Any], options: dict[str, Any], dtype: torch.dtype
) -> None:
    ours, our_losses = learnt(lambda given: build(given, **fields), dtype)
    theirs, their_losses = learnt(lambda given: torch.optim.AdamW(given, **options), dtype)
    assert torch.equal(ours, theirs) and our_losses == their_losses


def test_implementations_agree() -> None:
    """They add up in other orders: only the last of fp64's digits may differ."""
    found = [
        learnt(lambda given, how=how: build(given, implementation=how), torch.float64)[0]
        for how in ("fused", "foreach", "loop")
    ]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-11, atol=1e-12)


def test_first_step_by_hand() -> None:
    weight = nn.Parameter(torch.tensor([[2.0, -3.0]]))
    fields = {"lr": 0.1, "weight_decay": 0.5, "betas": (0.9, 0.99), "eps": 1e-8}
    optimizer = build([("w", weight)], **fields)
    weight.grad = torch.tensor([[4.0, -0.01]])
    optimizer.step()
    # After one step both means equal the gradient, so the update is lr * sign(gradient).
    decayed = torch.tensor([[2.0, -3.0]]) * (1 - 0.1 * 0.5)
    torch.testing.assert_close(weight.data, decayed - torch.tensor([[0.1, -0.1]]))


def test_groups_and_names_are_kept() -> None:
    model = network()
    optimizer = build(groups(model, betas=(0.5, 0.6)), lr=0.03)
    first, last, rest = optimizer.param_groups
    assert (first["name"], first["weight_decay"], first["betas"]) == ("decay", 0.1, (0.5, 0.6))
    assert (last["lr_multiplier"], last["lr"]) == (0.5, 0.03)
    assert (rest["betas"], rest["weight_decay"]) == ((0.9, 0.95), 0.0)
    assert last["param_names"] == ["5.weight"]
    assert rest["param_names"] == ["0.bias", "2.weight", "2.bias", "3.bias", "5.bias"]


def test_pairs_are_one_group_that_decays() -> None:
    (group,) = build(network().named_parameters(), weight_decay=0.3).param_groups
    assert group["weight_decay"] == 0.3 and len(group["params"]) == 8


def test_is_fused_on_the_cpu() -> None:
    assert all(group["fused"] for group in build(groups(network())).param_groups)


def test_other_devices_leave_the_choice_to_torch() -> None:
    optimizer = build(groups(network().to("meta")))
    assert all(not group["fused"] for group in optimizer.param_groups)


def test_fused_where_there_is_no_kernel() -> None:
    with pytest.raises(SetpointError, match=r"implementation = fused: .*devices: meta"):
        build(groups(network().to("meta")), implementation="fused")


@pytest.mark.parametrize("fields", [{}, {"amsgrad": True}, {"implementation": "loop"}])
def test_state_returns_exactly(fields: dict[str, Any]) -> None:
    def make(given: Groups) -> torch.optim.Optimizer:
        return build(given, **fields)

    assert_resumes(make, torch.float32)
