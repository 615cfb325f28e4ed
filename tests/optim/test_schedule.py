import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from setpoint.config import resolve
from setpoint.optim.config import Constant, Cosine
from setpoint.optim.schedule import constant_factor, cosine_factor


def torchs(warmup: int, horizon: int, floor: float, steps: int) -> list[float]:
    """The same schedule from torch's own parts."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    parts = []
    if warmup > 0:
        parts.append(
            lr_scheduler.LinearLR(optimizer, 1 / warmup, 1.0, max(1, warmup - 1))
            if warmup > 1
            else lr_scheduler.ConstantLR(optimizer, 1.0, 1)
        )
    parts.append(lr_scheduler.CosineAnnealingLR(optimizer, horizon - warmup, eta_min=floor))
    schedule = lr_scheduler.SequentialLR(optimizer, parts, [warmup] if warmup else [])
    factors = []
    for _ in range(steps):
        factors.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return factors


@pytest.mark.filterwarnings("ignore:.*deprecat.*:UserWarning")
@pytest.mark.parametrize(
    ("warmup", "horizon", "floor"), [(0, 20, 0.1), (1, 20, 0.0), (5, 30, 0.25), (29, 30, 0.1)]
)
def test_cosine_against_torch(warmup, horizon, floor):
    factor = resolve(Cosine(warmup_steps=warmup, horizon_steps=horizon, floor=floor)).build()
    ours = [factor(step) for step in range(horizon)]
    assert ours == pytest.approx(torchs(warmup, horizon, floor, horizon), abs=1e-9)


def test_cosine_by_hand():
    factor = resolve(Cosine(warmup_steps=4, horizon_steps=12, floor=0.2)).build()
    assert [factor(step) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert factor(4) == 1.0
    assert factor(8) == pytest.approx(0.6)
    assert factor(6) == pytest.approx(0.2 + 0.8 * (1 + math.sqrt(0.5)) / 2)
    assert factor(12) == factor(13) == factor(10**9) == 0.2


def test_constant_by_hand():
    assert [resolve(Constant()).build()(step) for step in (0, 1, 10**9)] == [1.0] * 3
    warm = resolve(Constant(warmup_steps=4)).build()
    assert [warm(step) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_warmup_as_long_as_the_horizon():
    factor = resolve(Cosine(warmup_steps=3, horizon_steps=3, floor=0.1)).build()
    assert [factor(step) for step in (1, 2, 3)] == pytest.approx([2 / 3, 1.0, 0.1])


@given(st.integers(0, 50), st.integers(0, 50), st.floats(0, 1))
def test_cosine_rises_then_falls_between_its_limits(warmup, decay, floor):
    horizon = max(1, warmup + decay)
    factors = [
        cosine_factor(step, warmup_steps=warmup, horizon_steps=horizon, floor=floor)
        for step in range(horizon + 2)
    ]
    rising, falling = factors[:warmup], factors[warmup:]
    assert all(0 < f <= 1 for f in rising)
    assert all(a < b for a, b in pairwise(rising))
    assert all(floor <= f <= 1 for f in falling)
    assert all(a >= b - 1e-12 for a, b in pairwise(falling))
    assert factors[-1] == floor


@given(st.integers(0, 50), st.integers(0, 100))
def test_constant_never_stands_still(warmup, step):
    assert constant_factor(step, warmup_steps=warmup) == min(1, (step + 1) / max(1, warmup))
