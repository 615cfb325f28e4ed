"""The section `adafactor` against torch.optim.Adafactor."""

from typing import Any

import pytest
import torch

from setpoint.config import resolve
from setpoint.optim.config import AdafactorConfig

from ..support.cases import few
from .problem import Groups, assert_resumes, groups, learnt, network


def build(given: Any, **fields: Any) -> torch.optim.Optimizer:
    return resolve(AdafactorConfig(**fields)).build(parameters=given)


@pytest.mark.parametrize("dtype", few([torch.float32, torch.float64], [torch.float32]))
@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, {}),
        ({"beta2_decay": -0.5}, {"beta2_decay": -0.5}),
        ({"eps1": 1e-4, "eps2": 1e-2}, {"eps": (1e-4, 1e-2)}),
        ({"clip_threshold": 2.0}, {"d": 2.0}),
    ],
)
def test_a_hundred_steps_against_torch(
    fields: dict[str, Any], options: dict[str, Any], dtype: torch.dtype
) -> None:
    def theirs(given: Groups) -> torch.optim.Optimizer:
        return torch.optim.Adafactor(given, lr=0.02, **options)

    ours, our_losses = learnt(lambda given: build(given, **fields), dtype)
    others, their_losses = learnt(theirs, dtype)
    assert torch.equal(ours, others) and our_losses == their_losses


def test_options_of_a_group_are_translated() -> None:
    optimizer = build(groups(network(), clip_threshold=3.0, eps2=0.5), eps1=1e-5)
    first, _, rest = optimizer.param_groups
    assert (first["d"], first["eps"]) == (3.0, (1e-5, 0.5))
    assert (rest["d"], rest["eps"]) == (1.0, (1e-5, 1e-3))
    assert "clip_threshold" not in first and "eps2" not in first


def test_means_of_rows_and_columns_are_all_it_keeps() -> None:
    weight = torch.nn.Parameter(torch.ones(3, 40, 50))
    optimizer = build([("w", weight)])
    weight.grad = torch.randn(3, 40, 50)
    optimizer.step()
    state = optimizer.state[weight]
    assert {tuple(state[name].shape) for name in ("row_var", "col_var")} == {(3, 40, 1), (3, 1, 50)}


def test_state_returns_exactly() -> None:
    assert_resumes(build, torch.float32)
