"""Every schedule over a whole run: against closed formulas and torch."""

import json
import math
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, MultiStepLR, ReduceLROnPlateau

from setpoint.config import resolve
from setpoint.optim.curves import PlateauCurve, ScheduleTime, between, phase_ends
from setpoint.optim.schedule import (
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
from setpoint.units import Duration, Length

from ...support.cases import rotated
from ...support.snapshots import refused

W, T, D, M, A = 7, 60, 20, 0.1, 0.2
"""Updates of the warm-up, of the run and of the last decay; the floor; where the warm-up begins."""
SHARED: dict[str, Any] = {"warmup": W, "warmup_from": A, "horizon": T, "floor": M}
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
    "from-start": Cosine(**SHARED, warmup_at="start"),
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
        "from-start": np.where(
            s < W, A + (1 - A) * s / W, M + (1 - M) * np.cos(np.pi / 2 * t) ** 2
        ),
        "piecewise": np.interp(s, [W, T - D, T], [1, 0.5, M]) * (s >= W) + rise * (s < W),
    }


@pytest.mark.parametrize("name", SECTIONS)
def test_against_the_closed_formula(name: str) -> None:
    factor = resolve(SECTIONS[name]).build()
    ours = [factor(step) for step in range(2 * T)]
    assert np.allclose(ours, formulas(2 * T)[name], rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("name", SECTIONS)
@given(data=st.data())
def test_between_two_updates_nothing_leaps(name: str, data: st.DataObject) -> None:
    """Where tokens are counted, positions are not whole."""
    factor = resolve(SECTIONS[name]).build()
    step = data.draw(st.integers(0, 2 * T))
    low, high = sorted((factor(step), factor(step + 1)))
    found = factor(step + data.draw(st.floats(0, 1)))
    assert low - 1e-12 <= found <= high + 1e-12


def followed(optimizer: SGD, schedule: Any, steps: int) -> list[float]:
    """The rates of steps by a schedule of torch."""
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


@given(st.floats(0, 1))
def test_against_decimals(t: float) -> None:
    share, way = Decimal(t), Decimal("0.99")
    at = {
        "linear": 1 - way * share,
        "polynomial": 1 - way * share * share * share,
        "exponential": Decimal("0.01") ** share,
    }
    for curve in ("linear", "polynomial", "exponential"):
        phase = SchedulePhase(target=0.01, curve=curve, power=3.0)
        found = between(1.0, phase, t)
        assert found == pytest.approx(float(at[curve]), rel=1e-12)


def test_an_update_has_the_higher_end() -> None:
    phases = (SchedulePhase(length=4, target=1.0), SchedulePhase(length=2, target=0.0))
    factor = resolve(Piecewise(phases=phases)).build()
    assert [factor(step) for step in range(8)] == [0.25, 0.5, 0.75, 1.0, 1.0, 0.5, 0.0, 0.0]
    # Between two updates, too.
    assert factor(3.5) == 1.0 and factor(5.5) == 0.25


def rates(scheduler: type, steps: int, **arguments: object) -> list[float]:
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    return followed(optimizer, scheduler(optimizer, **arguments), steps)


def test_jumps_are_those_of_torchs_milestones() -> None:
    phases = [SchedulePhase(length=10, target=1.0)]
    for length, factor in ((20, 0.1), (5, 0.01)):
        phases += [
            SchedulePhase(length=0, target=factor),
            SchedulePhase(length=length, target=factor),
        ]
    ours = resolve(Piecewise(start=1.0, phases=tuple(phases))).build()
    theirs = rates(MultiStepLR, 50, milestones=[10, 30], gamma=0.1)
    assert [ours(step) for step in range(50)] == pytest.approx(theirs, rel=1e-12)


def test_restarts_are_those_of_torch() -> None:
    phases: list[SchedulePhase] = []
    for length in (5, 10, 20):
        phases += [
            SchedulePhase(length=0, target=1.0),
            SchedulePhase(length=length, target=0.1, curve="cosine"),
        ]
    ours = resolve(Piecewise(phases=tuple(phases))).build()
    theirs = rates(CosineAnnealingWarmRestarts, 35, T_0=5, T_mult=2, eta_min=0.1)
    assert [ours(step) for step in range(35)] == pytest.approx(theirs, rel=1e-12)


def test_shares_and_what_is_left() -> None:
    phases = [SchedulePhase(length="10 %", target=1.0)] * 10
    section = resolve(Piecewise(phases=tuple(phases), horizon=7))
    assert section.end == Duration(7)
    assert phase_ends(section, "steps", 7, ScheduleTime.of(0))[-1] == 7
    left = (
        SchedulePhase(length=3, target=1.0),
        SchedulePhase(target=0.5),
        SchedulePhase(length="25 %", target=0.1),
    )
    section = resolve(Piecewise(phases=left, horizon=40))
    factor = section.build()
    assert phase_ends(section, "steps", 40, ScheduleTime.of(0)) == [3, 30, 40]
    assert [factor(step) for step in (2, 3, 30, 40)] == [1, 1, 0.5, 0.1]


def torch_plateau(values: list[float], **options: Any) -> list[float]:
    """The factors after each value, by torch."""
    optimizer = SGD([nn.Parameter(nn.Parameter().new_zeros(1))], lr=1.0)
    schedule = ReduceLROnPlateau(optimizer, threshold_mode="rel", eps=0.0, **options)
    found = []
    for value in values:
        schedule.step(value)
        found.append(optimizer.param_groups[0]["lr"])
    return found


def metrics(draw: random.Random) -> list[float]:
    """Values that get better, then stand still, with slips; some are not numbers."""
    level, found = 5.0, []
    for _ in range(draw.randrange(1, 60)):
        level *= draw.choice((0.9, 0.9999, 1.0, 1.0, 1.0001, 1.01))
        found.append(draw.choice((level, level, level, level, level, math.nan, math.inf)))
    return found


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("seed", range(12))
def test_against_torch(mode: str, seed: int) -> None:
    draw = random.Random(f"{mode}{seed}")
    values = metrics(draw)
    if mode == "max":
        values = [1 / value for value in values]
    options: dict[str, Any] = {
        "factor": draw.choice((0.1, 0.5, 0.9)),
        "patience": draw.randrange(4),
        "threshold": draw.choice((0.0, 1e-4, 1e-2, 0.3)),
        "cooldown": draw.randrange(3),
    }
    floor = draw.choice((0.0, 0.05, 0.4))
    monitor = {"min": "held_out.loss", "max": "held_out.accuracy"}[mode]
    section = resolve(Plateau(monitor=monitor, floor=floor, **options))
    curve = PlateauCurve(section)
    ours: list[float] = []
    for value in values:
        curve.observe(value)
        ours.append(curve(0))
        # A state that went through a file goes on as if nothing had happened.
        state = json.loads(json.dumps(curve.state_dict(), allow_nan=False))
        curve = PlateauCurve(section)
        curve.load_state_dict(state)
    assert ours == torch_plateau(values, mode=mode, min_lr=floor, **options)


def test_the_warmup_goes_on_beside_it() -> None:
    curve = resolve(Plateau(warmup=4, patience=0, factor=0.5)).build()
    assert [curve(step) for step in range(5)] == [0.25, 0.5, 0.75, 1, 1]
    curve.observe(1.0)
    curve.observe(1.0)
    assert [curve(step) for step in range(5)] == [0.125, 0.25, 0.375, 0.5, 0.5]


def test_values_of_another_metric_are_forgotten() -> None:
    options: dict[str, Any] = {"patience": 1, "threshold": 0.0}
    one = resolve(Plateau(monitor="held_out.loss", **options)).build()
    for value in (2.0, 2.0, 2.0, 2.0):
        one.observe(value)
    other = resolve(Plateau(monitor="held_out.accuracy", **options)).build()
    other.load_state_dict(one.state_dict())
    assert (other.level, other.best, other.waited) == (0.5, None, 0)


@pytest.mark.parametrize(
    ("recorded", "kept"), [("held_out every 2 steps", True), ("web every 2 steps", False)]
)
def test_values_of_another_text_are_forgotten(recorded: str, kept: bool) -> None:
    section = Plateau(patience=5)
    section.evaluated_on = "held_out every 2 steps"
    one, other = resolve(section).build(), resolve(section).build()
    for value in (2.0, 3.0):
        one.observe(value)
    other.load_state_dict({**one.state_dict(), "evaluated_on": recorded})
    assert (other.best, other.waited) == ((2.0, 1) if kept else (None, 0))


def test_more_is_better_for_accuracy_only() -> None:
    names = ("loss", "perplexity", "bits_per_byte", "accuracy")
    found = [resolve(Plateau(monitor=f"my.web-1.{name}")).direction for name in names]
    assert found == ["min", "min", "min", "max"]


# A step is a 64th of an epoch, 32 tokens and half a second, so that all is exact.
STEP = {"steps": 1.0, "tokens": 32.0, "epochs": 1 / 64, "seconds": 0.5}
UNITS = {"128 steps": "steps", "2 epochs": "epochs", "4096 tokens": "tokens", "64 s": "seconds"}


def place(step: float, **more: float) -> ScheduleTime:
    return ScheduleTime(
        {unit: size * step for unit, size in STEP.items()} | more, {**STEP, "seconds": 0}
    )


def ended(cls: type[ScheduleConfig], **more: Any) -> list[float]:
    factor = resolve(cls(**more)).build()
    return [factor(place(step)) for step in range(130)]


EASED = {"warmup": "12.5 %", "floor": 0.25}
ENDED: dict[type[ScheduleConfig], dict[str, Any]] = {
    Cosine: EASED,
    Linear: EASED,
    Polynomial: EASED,
    Rex: EASED,
    Wsd: {**EASED, "decay_length": "25 %"},
    Piecewise: {"phases": (SchedulePhase(length="12.5 %", target=1.0), SchedulePhase(target=0.25))},
    Constant: {"warmup": "12.5 %"},
    InverseSqrt: {"warmup": "12.5 %"},
    Plateau: {"warmup": "12.5 %"},
}


@pytest.mark.parametrize(
    ("cls", "horizon"), rotated(ENDED, [*UNITS, "[128, 2 epochs]", "[2 epochs, 4096 tokens]"])
)
def test_a_curve_is_the_same_in_every_unit(cls: type[ScheduleConfig], horizon: str) -> None:
    """Where all steps are alike, a share of the one is a share of the other."""
    more = ENDED[cls]
    found, wanted = ended(cls, horizon=horizon, **more), ended(cls, horizon=128, **more)
    # Nobody knows how long a step will take: a warm-up in time is that of its beginning.
    in_time = 16 if horizon == "64 s" else 0
    assert found[in_time:] == wanted[in_time:]
    assert found[:in_time] == [step / 16 for step in range(in_time)]


@pytest.mark.parametrize(
    ("horizon", "warmup"), rotated(UNITS, ["16", "512 tokens", "0.25 epochs", "8 s", "12.5 %"])
)
def test_a_warm_up_in_another_unit(horizon: str, warmup: str) -> None:
    """It is measured in its own unit; what follows begins where it was over."""
    found = ended(Cosine, horizon=horizon, warmup=warmup)
    slow = "s" in warmup.split() or (warmup == "12.5 %" and horizon == "64 s")
    assert found[:16] == [(step + (not slow)) / 16 for step in range(16)]
    assert found[16:] == ended(Cosine, horizon=128, warmup=16)[16:]


def test_of_several_limits_the_nearest_counts() -> None:
    factor = resolve(Cosine(horizon="[100 steps, 2 epochs]", warmup=0, floor=0)).build()
    half = [factor(place(10, epochs=1.0)), factor(place(50, epochs=0.1))]
    assert half == [pytest.approx(0.5)] * 2
    assert factor(place(10, epochs=2.0)) == factor(place(100, epochs=0.1)) == 0


@pytest.mark.parametrize(
    ("cls", "horizon"), rotated(ENDED, [10**18, f"{10**18} tokens", "1e18 epochs", "1e13 days"])
)
def test_no_length_takes_long(cls: type[ScheduleConfig], horizon: str | int) -> None:
    factor = resolve(cls(horizon=horizon, **ENDED[cls])).build()
    assert 0 <= factor(place(0)) < 1e-12 and 0 <= factor(place(10**9)) <= 1


def test_a_number_is_a_step() -> None:
    factor = resolve(Cosine(horizon=100)).build()
    assert factor(7) == factor(place(7))
    with refused(ValueError):
        resolve(Cosine(horizon="1 epoch")).build()(7)
