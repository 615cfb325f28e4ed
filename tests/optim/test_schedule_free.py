"""Schedule-free AdamW against its formulas with all three points, and the package schedulefree."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from setpoint.config import resolve
from setpoint.optim.config import ScheduleFreeAdamWConfig
from setpoint.optim.elementwise import ScheduleFreeAdamW as Optimizer

from ..support.cases import few
from .problem import Groups, assert_resumes, flat, follow, groups, network


def build(given: Any, **fields: Any) -> Optimizer:
    optimizer = resolve(ScheduleFreeAdamWConfig(**fields)).build(parameters=given)
    assert isinstance(optimizer, Optimizer)
    return optimizer


class Formulas(torch.optim.Optimizer):
    """The algorithm as the paper has it, with x, y and z as tensors of their own."""

    def __init__(
        self,
        given: Groups,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        lr_power: float = 2.0,
        step_power: float = 0.0,
    ) -> None:
        super().__init__(given, {"lr": 0.0, "weight_decay": 0.0})
        self.betas, self.eps = betas, eps
        self.powers = lr_power, step_power
        self.rates: dict[int, list[float]] = {}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        beta1, beta2 = self.betas
        for index, group in enumerate(self.param_groups):
            rates = self.rates.setdefault(index, [])
            rates.append(group["lr"])
            weights = [
                (t + 1) ** self.powers[1] * max(rates[: t + 1]) ** self.powers[0]
                for t in range(len(rates))
            ]
            for y in group["params"]:
                state = self.state[y]
                x: Tensor = state.get("x", y.clone())
                z: Tensor = state.get("z", y.clone())
                v = beta2 * state.get("v", torch.zeros_like(y)) + (1 - beta2) * y.grad**2
                root = (v / (1 - beta2 ** len(rates))).sqrt() + self.eps
                step = y.grad / root + group["weight_decay"] * y
                z = z - group["lr"] * step
                share = weights[-1] / sum(weights) if sum(weights) else 0.0
                x = (1 - share) * x + share * z
                self.state[y] |= {"x": x, "z": z, "v": v}
                y.copy_(beta1 * x + (1 - beta1) * z)


CHOICES = [
    {},
    {"betas": (0.7, 0.9), "eps": 1e-4},
    {"lr_power": 0.0, "step_power": 2.0},
    {"lr_power": 1.0, "step_power": 0.5},
]


@pytest.mark.parametrize("dtype", few([torch.float32, torch.float64], [torch.float32]))
@pytest.mark.parametrize("fields", CHOICES)
def test_a_hundred_steps_against_the_package(fields: dict[str, Any], dtype: torch.dtype) -> None:
    """To the last bit, at both points."""
    oracle: Any = pytest.importorskip("schedulefree").AdamWScheduleFree

    names = {"lr_power": "weight_lr_power", "step_power": "r"}
    options = {names.get(name, name): value for name, value in fields.items()}
    ours, theirs = network(dtype), network(dtype)
    optimizer, other = build(groups(ours), **fields), oracle(groups(theirs), **options)
    other.train()
    follow([optimizer], ours)
    follow([other], theirs)
    assert torch.equal(flat(ours), flat(theirs))
    other.eval()
    with optimizer.averaged():
        assert torch.equal(flat(ours), flat(theirs))


def test_the_average_is_put_in_and_the_weights_come_back_bit_for_bit() -> None:
    model = network()
    optimizer = build(groups(model))
    follow([optimizer], model, 0, 20)
    before = flat(model)
    for _ in range(3):
        with optimizer.averaged() as kept:
            average = flat(model)
            assert not torch.equal(average, before)
            assert torch.equal(torch.cat([kept[p].flatten() for p in model.parameters()]), before)
        assert torch.equal(flat(model), before)
    with pytest.raises(RuntimeError, match="judging failed"), optimizer.averaged():
        raise RuntimeError("judging failed")
    assert torch.equal(flat(model), before)


def test_frozen_and_unused_parameters_stay() -> None:
    used, unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimizer = build([("used", used), ("unused", unused)])
    used.grad = torch.ones(3)
    optimizer.step()
    assert unused.eq(1).all() and not used.eq(1).any()
    with optimizer.averaged() as kept:
        assert list(kept) == [used]


@pytest.mark.parametrize("frozen", [range(8), range(3, 9)], ids=["at first", "in the middle"])
def test_a_thawed_parameter_goes_on_as_if_frozen_steps_had_not_been(frozen: range) -> None:
    """By the formulas over the steps that it took, also where a state was saved in between."""
    steps = [step for step in range(16) if step not in frozen]
    gradients = torch.randn(16, 5, dtype=torch.float64)
    ours, theirs, other = (nn.Parameter(torch.ones(5, dtype=torch.float64)) for _ in range(3))
    optimizer = build([("ours", ours), ("other", other)], weight_decay=0.1)
    oracle = Formulas([{"params": [theirs], "weight_decay": 0.1}])
    for step, gradient in enumerate(gradients):
        rate = 0.1 / (step + 1)
        ours.grad = gradient.clone() if step in steps else None
        other.grad = gradient.clone()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        if step == 10:
            state = optimizer.state_dict()
            optimizer = build([("ours", ours), ("other", other)], weight_decay=0.1)
            optimizer.load_state_dict(state)
        if step in steps:
            theirs.grad = gradient.clone()
            oracle.param_groups[0]["lr"] = rate
            oracle.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
    with optimizer.averaged():
        torch.testing.assert_close(ours.detach(), oracle.state[theirs]["x"].detach())


def test_a_rate_of_zero_at_the_start_gives_no_weight() -> None:
    weight = nn.Parameter(torch.ones(2, dtype=torch.float64))
    optimizer = build([("w", weight)], weight_decay=0.0)
    for lr in (0.0, 0.1):
        optimizer.param_groups[0]["lr"] = lr
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    # The first step counts for nothing, so that the average is where the second one led.
    with optimizer.averaged():
        torch.testing.assert_close(weight.detach(), torch.full_like(weight, 0.9).detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_returns_exactly(dtype: torch.dtype) -> None:
    assert_resumes(build, dtype)
