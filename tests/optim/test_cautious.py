"""Cautious weight decay (Chen et al., 2025, https://arxiv.org/abs/2510.12402)."""

from typing import Any

import pytest
import torch

from setpoint.config import resolve
from setpoint.optim.config import AdamWConfig, AnyPrecisionAdamWConfig, LionConfig, MuonConfig

from .problem import backward, flat, follow, groups, network, rate

LR, DECAY, STEPS = 0.01, 0.3, 30
ALGORITHMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "adamw": (AdamWConfig(), {}),
    "loop": (AdamWConfig(implementation="loop", amsgrad=True), {}),
    "anyprecision": (AnyPrecisionAdamWConfig(rounding="nearest"), {"state_dtype": None, "seed": 1}),
    "lion": (LionConfig(), {"state_dtype": None}),
    "muon": (MuonConfig(), {"state_dtype": None}),
}


def make(config: Any, given: Any, runtime: dict[str, Any], cautious: bool = True) -> Any:
    if isinstance(config, MuonConfig):
        kinds = ("muon", "muon", "adamw")
        given = [{**group, "algorithm": kind} for group, kind in zip(given, kinds, strict=True)]
    changed = config.evolve(lr=LR, cautious_weight_decay=cautious)
    return resolve(changed).build(parameters=given, **runtime)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_formula_beside_steps_without_decay(name: str) -> None:
    """X = x - lr (u + decay x [u x >= 0]): u is what a twin that does not decay subtracts."""
    config, runtime = ALGORITHMS[name]
    model, twin = network(torch.float64), network(torch.float64)
    optimizer = make(config, groups(model, DECAY), runtime)
    plain = make(config, groups(twin, 0.0), runtime, cautious=False)
    decays = {name: group["weight_decay"] for group in groups(model, DECAY)
              for name, _ in group["params"]}  # fmt: skip
    skipped = 0
    for step in range(STEPS):
        twin.load_state_dict(model.state_dict())
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        for each, steps in ((model, optimizer), (twin, plain)):
            backward(each, step)
            steps.step()
            steps.zero_grad()
        moved = dict(twin.named_parameters())
        for name, after in model.named_parameters():
            x, update = before[name], before[name] - moved[name].detach()
            aligned = update * x >= 0
            skipped += int((~aligned).sum()) if decays[name] else 0
            expected = moved[name] - LR * decays[name] * x * aligned
            torch.testing.assert_close(after, expected, rtol=0, atol=1e-12)
    assert skipped > 1000


def test_a_plain_loop_of_adamw() -> None:
    model, other = network(torch.float64), network(torch.float64)
    optimizer = make(AdamWConfig(betas=(0.9, 0.95)), groups(model), {})
    follow([optimizer], model)
    means = {p: torch.zeros_like(p) for p in other.parameters()}
    squares = {p: torch.zeros_like(p) for p in other.parameters()}
    for step in range(100):
        other.zero_grad()
        backward(other, step)
        for group in groups(other):
            lr = rate(step) * group.get("lr_multiplier", 1.0)
            for _, x in group["params"]:
                m, v = means[x], squares[x]
                m += (1 - 0.9) * (x.grad - m)
                v += (1 - 0.95) * (x.grad**2 - v)
                root = (v / (1 - 0.95 ** (step + 1))).sqrt() + 1e-8
                update = m / (1 - 0.9 ** (step + 1)) / root
                mask = (update * x >= 0).double()
                with torch.no_grad():
                    x -= lr * (update + group["weight_decay"] * mask * x)
    torch.testing.assert_close(flat(model), flat(other), rtol=0, atol=1e-10)
