"""Every schedule over a whole run: against closed formulas, torch and transformers."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from setpoint.config import resolve
from setpoint.optim.schedule.config import (
    Constant,
    Cosine,
    InverseSqrt,
    Linear,
    NoSchedule,
    Piecewise,
    Plateau,
    Polynomial,
    Rex,
    ScheduleConfig,
    SchedulePhase,
    Wsd,
)
from setpoint.units import Length

W, T, D, M, A = 7, 60, 20, 0.1, 0.2
"""Updates of the warm-up, of the run and of the last decay; the floor; where the warm-up begins."""
SHARED: dict[str, Any] = {
    "warmup": W,
    "warmup_from": A,
    "horizon": T,
    "floor": M,
}
SECTIONS: dict[str, ScheduleConfig] = {
    "none": NoSchedule(),
    "constant": Constant(warmup=W, warmup_from=A),
    "cosine": Cosine(**SHARED),
    "linear": Linear(**SHARED),
    "polynomial": Polynomial(**SHARED, power=3.0),
    "hard": Polynomial(**SHARED, power=3.0, hard_floor=True),
    "rex": Rex(**SHARED),
    "wsd-linear": Wsd(**SHARED, decay_length=D),
    "wsd-cosine": Wsd(**SHARED, decay_length=D, decay="cosine"),
    "wsd-sqrt": Wsd(**SHARED, decay_length=D, decay="sqrt"),
    "wsd-one_minus_sqrt": Wsd(**SHARED, decay_length=D, decay="one_minus_sqrt"),
    "inverse_sqrt": InverseSqrt(warmup=W, warmup_from=A, timescale=11, floor=0.3),
    "plateau": Plateau(warmup=W, warmup_from=A),
    "piecewise": Piecewise(
        start=A,
        phases=(
            SchedulePhase(length=W, target=1.0),
            SchedulePhase(target=0.5),
            SchedulePhase(length=Length.of_share(1 / 3), target=M),
        ),
        horizon=T,
    ),
}  # fmt: skip


def formulas(steps: int) -> dict[str, np.ndarray]:
    """The factors of all updates, from the formulas of docs/schedule.md at once."""
    s = np.arange(steps, dtype=np.float64)
    rise = np.minimum(1, A + (1 - A) * np.minimum(1, (s + 1) / W))
    t = np.clip((s - W) / (T - W), 0, 1)
    u = np.clip((s - (T - D)) / D, 0, 1)

    def whole(left: np.ndarray) -> np.ndarray:
        return np.where(s < W, rise, M + (1 - M) * left)

    return {
        "none": np.ones(steps),
        "constant": rise,
        "cosine": whole(np.cos(np.pi / 2 * t) ** 2),
        "linear": whole(1 - t),
        "polynomial": whole((1 - t) ** 3),
        "hard": np.where(s < W, rise, np.maximum(M, (1 - t) ** 3)),
        "rex": whole(2 * (1 - t) / (2 - t)),
        "wsd-linear": whole(1 - u),
        "wsd-cosine": whole(np.cos(np.pi / 2 * u) ** 2),
        "wsd-sqrt": whole(np.sqrt(1 - u)),
        "wsd-one_minus_sqrt": whole(1 - np.sqrt(u)),
        "inverse_sqrt": np.where(s < W, rise, np.maximum(0.3, (1 + (s - W) / 11) ** -0.5)),
        "plateau": rise,
        "piecewise": np.interp(s, [W, T - D, T], [1, 0.5, M]) * (s >= W) + rise * (s < W),
    }


@pytest.mark.parametrize("name", SECTIONS)
def test_against_the_closed_formula(name: str) -> None:
    factor = resolve(SECTIONS[name]).build()
    ours = [factor(step) for step in range(2 * T)]
    assert np.allclose(ours, formulas(2 * T)[name], rtol=1e-14, atol=1e-15)


def test_every_variant_is_held_against_its_formula() -> None:
    from setpoint.config.schema.class_info import section_classes
    from setpoint.train.config import Job

    variants = set(section_classes(Job.__setpoint__.fields["schedule"].type))
    assert variants - {type(section) for section in SECTIONS.values()} == set()


@pytest.mark.parametrize("name", SECTIONS)
@given(data=st.data())
def test_between_two_updates_nothing_leaps(name: str, data: st.DataObject) -> None:
    """Where tokens are counted, positions are not whole."""
    factor = resolve(SECTIONS[name]).build()
    step = data.draw(st.integers(0, 2 * T))
    low, high = sorted((factor(step), factor(step + 1)))
    found = factor(step + data.draw(st.floats(0, 1)))
    assert low - 1e-12 <= found <= high + 1e-12


def lambdas() -> dict[str, tuple[ScheduleConfig, Callable[[int], float], int]]:
    """Of transformers: ours, theirs, and by how many updates theirs is late after the warm-up.

    Their warm-up is s / W, so that their first update learns nothing: it is ours an update later.
    After it they count as we do, but for the cosine with a least rate, which is an update ahead.
    """
    o: Any = pytest.importorskip("transformers.optimization")
    p = torch.nn.Parameter(torch.zeros(1))
    shared: dict[str, Any] = {"num_warmup_steps": W, "num_training_steps": T}

    def theirs(make: Callable[..., Any], **arguments: Any) -> Callable[[int], float]:
        optimizer = torch.optim.SGD([p], lr=1.0)
        return make(optimizer, **arguments).lr_lambdas[0]

    ours: dict[str, Any] = {"warmup": W, "horizon": T}
    wsd: dict[str, Any] = {
        "num_warmup_steps": W, "num_stable_steps": T - D - W, "num_decay_steps": D,
        "min_lr_ratio": M,
    }  # fmt: skip
    least = theirs(o.get_cosine_with_min_lr_schedule_with_warmup, **shared, min_lr_rate=M)
    ahead = theirs(o.get_cosine_with_min_lr_schedule_with_warmup_lr_rate, **shared, min_lr_rate=M)
    return {
        "constant": (
            Constant(warmup=W),
            theirs(o.get_constant_schedule_with_warmup, num_warmup_steps=W),
            0,
        ),
        "linear": (
            Linear(**ours, floor=0.0), theirs(o.get_linear_schedule_with_warmup, **shared), 0
        ),
        "cosine": (
            Cosine(**ours, floor=0.0), theirs(o.get_cosine_schedule_with_warmup, **shared), 0
        ),
        "cosine_with_min_lr": (Cosine(**ours, floor=M), least, 0),
        "cosine_warmup_with_min_lr": (Cosine(**ours, floor=M), ahead, 1),
        "polynomial": (
            Polynomial(**ours, floor=M, power=3.0),
            theirs(o.get_polynomial_decay_schedule_with_warmup, **shared, lr_end=M, power=3.0),
            0,
        ),
        "inverse_sqrt": (
            InverseSqrt(warmup=W, timescale=11),
            theirs(o.get_inverse_sqrt_schedule, num_warmup_steps=W, timescale=11),
            0,
        ),
        "wsd-linear": (
            Wsd(**ours, floor=M, decay_length=D, warmup_from=M),
            theirs(o.get_wsd_schedule, **wsd, decay_type="linear"),
            0,
        ),
        "wsd-cosine": (
            Wsd(**ours, floor=M, decay_length=D, warmup_from=M, decay="cosine"),
            theirs(o.get_wsd_schedule, **wsd, decay_type="cosine"),
            0,
        ),
        "wsd-1-sqrt": (
            Wsd(**ours, floor=M, decay_length=D, warmup_from=M, decay="one_minus_sqrt"),
            theirs(o.get_wsd_schedule, **wsd, decay_type="1-sqrt"),
            0,
        ),
    }  # fmt: skip


NAMES = (
    "constant", "linear", "cosine", "cosine_with_min_lr", "cosine_warmup_with_min_lr",
    "polynomial", "inverse_sqrt", "wsd-linear", "wsd-cosine", "wsd-1-sqrt",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_against_transformers(name: str) -> None:
    section, theirs, late = lambdas()[name]
    factor = resolve(section).build()
    # That with the name of a warm-up's rate counts the warm-up as we do.
    shift = 0 if late else 1
    warmup = [theirs(step + shift) for step in range(W)]
    assert [factor(step) for step in range(W)] == pytest.approx(warmup, rel=1e-14)
    rest = [theirs(step - late) for step in range(W + late, T)]
    assert [factor(step) for step in range(W + late, T)] == pytest.approx(rest, abs=1e-14)


def test_all_of_transformers_is_compared() -> None:
    o: Any = pytest.importorskip("transformers.optimization")
    others = {
        "cosine_with_restarts": "phases",
        "constant_with_warmup": "constant",
        "warmup_stable_decay": "wsd",
        "reduce_lr_on_plateau": "against torch, whose it is",
        "greedy": "lowers the rate by the training loss",
    }
    theirs = {kind.value for kind in o.TYPE_TO_SCHEDULER_FUNCTION}
    assert theirs <= {*NAMES, *others}


def torchs(warmup: int, horizon: int, floor: float, steps: int) -> list[float]:
    """The cosine from torch's own parts."""
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
def test_cosine_against_torch(warmup: int, horizon: int, floor: float) -> None:
    factor = resolve(Cosine(warmup=warmup, horizon=horizon, floor=floor)).build()
    ours = [factor(step) for step in range(horizon)]
    assert ours == pytest.approx(torchs(warmup, horizon, floor, horizon), abs=1e-9)


def test_cosine_by_hand() -> None:
    factor = resolve(Cosine(warmup=4, horizon=12, floor=0.2)).build()
    assert [factor(step) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert factor(4) == 1.0
    assert factor(8) == pytest.approx(0.6)
    assert factor(6) == pytest.approx(0.2 + 0.8 * (1 + math.sqrt(0.5)) / 2)
    assert factor(12) == factor(13) == factor(10**9) == 0.2


@given(st.integers(0, 50), st.integers(0, 50), st.floats(0, 1))
def test_cosine_rises_then_falls_between_its_limits(warmup: int, decay: int, floor: float) -> None:
    horizon = max(1, warmup + decay)
    section = Cosine(warmup=warmup, horizon=horizon, floor=floor)
    factor = resolve(section).build()
    factors = [factor(step) for step in range(horizon + 2)]
    rising, falling = factors[:warmup], factors[warmup:]
    assert all(0 < f <= 1 for f in rising)
    assert all(a < b for a, b in pairwise(rising))
    assert all(floor <= f <= 1 for f in falling)
    assert all(a >= b - 1e-12 for a, b in pairwise(falling))
    assert factors[-1] == floor
