"""Lion against its closed formula, written out again in Python's own numbers and in fp64."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from setpoint.config import resolve
from setpoint.optim.config import LionConfig

from .problem import Groups, assert_resumes, learnt


def build(given: Any, state_dtype: torch.dtype | None = None, **fields: Any) -> Any:
    return resolve(LionConfig(**fields)).build(parameters=given, state_dtype=state_dtype)


class Formula(torch.optim.Optimizer):
    """Algorithm 2 of the paper, tensor by tensor."""

    def __init__(self, given: Groups, beta1: float = 0.9, beta2: float = 0.99) -> None:
        super().__init__(given, {"lr": 0.0, "weight_decay": 0.0})
        self.betas = beta1, beta2

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        beta1, beta2 = self.betas
        for group in self.param_groups:
            for p in group["params"]:
                mean: Tensor = self.state[p].get("m", torch.zeros_like(p))
                update = torch.sign(beta1 * mean + (1 - beta1) * p.grad)
                p.copy_(p * (1 - group["lr"] * group["weight_decay"]) - group["lr"] * update)
                self.state[p]["m"] = beta2 * mean + (1 - beta2) * p.grad


def test_a_hundred_steps_against_the_formula() -> None:
    """In fp64 both take the same signs all the way; what differs is the order of products."""
    ours, _ = learnt(build, torch.float64)
    theirs, _ = learnt(Formula, torch.float64)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)


def test_a_mean_in_bf16_is_computed_in_the_format_of_the_gradient() -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = build([("w", weight)], torch.bfloat16, betas=(0.0, 0.5))
    weight.grad = torch.tensor([1.0])
    optimizer.step()
    weight.grad = torch.tensor([1.0 + 2**-7])
    optimizer.step()
    # 0.25 + 0.5 (1 + 2^-7) in fp32, rounded once.
    expected = torch.tensor(0.25 + 0.5 * (1 + 2**-7)).bfloat16()
    assert optimizer.state[weight]["exp_avg"].item() == expected.item()


@pytest.mark.parametrize("state", [None, torch.bfloat16])
def test_state_returns_exactly(state: torch.dtype | None) -> None:
    assert_resumes(lambda given: build(given, state), torch.float32)
