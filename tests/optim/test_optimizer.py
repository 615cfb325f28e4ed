from typing import Any

import torch
from torch import nn

from setpoint.optim.lion import Lion
from setpoint.optim.optimizer import GroupedOptimizer, foreach_groups, takes_flag


class Halving(GroupedOptimizer):
    """Halves what has a gradient."""

    def update(self, group: dict[str, Any]) -> None:
        for p in group["params"]:
            if p.grad is not None:
                p.mul_(group["factor"])


def test_a_closure_is_called_with_gradients() -> None:
    a = nn.Parameter(torch.ones(1))
    optimizer = Halving([{"params": [a], "factor": 0.5}], {})

    def closure() -> float:
        loss = (3 * a).sum()
        loss.backward()
        return float(loss.detach())

    assert optimizer.step(closure) == 3.0
    assert a.item() == 0.5


def test_the_device_skips_steps_of_optimizers_that_say_so() -> None:
    """A new optimizer does not apply NaN gradients before the host has seen them."""
    assert not takes_flag(Halving([{"params": [nn.Parameter(torch.ones(1))]}], {}))
    assert takes_flag(Lion([{"params": [nn.Parameter(torch.ones(1))]}]))


def test_lists_for_foreach_operations() -> None:
    here = [torch.zeros(1), torch.zeros(2)]
    there = [torch.zeros(1, device="meta"), torch.zeros(2, device="meta")]
    found = list(foreach_groups([here[0], *there, here[1]]))
    expected = [[here[0]], [here[1]], there]
    assert [[id(t) for t in one] for one in found] == [[id(t) for t in one] for one in expected]
    assert list(foreach_groups([])) == []
