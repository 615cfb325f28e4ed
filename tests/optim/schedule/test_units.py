"""Schedules over durations in every unit, against the formulas with fake positions."""

from __future__ import annotations

import math
from typing import Any

import pytest

from setpoint.config import resolve
from setpoint.optim.schedule.config import (
    Constant,
    Cosine,
    InverseSqrt,
    Linear,
    Piecewise,
    Plateau,
    Polynomial,
    Rex,
    ScheduleConfig,
    SchedulePhase,
    Wsd,
)
from setpoint.optim.schedule.curves import ScheduleTime

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


@pytest.mark.parametrize("horizon", [*UNITS, "[128, 2 epochs]", "[2 epochs, 4096 tokens]"])
@pytest.mark.parametrize("cls", ENDED)
def test_a_curve_is_the_same_in_every_unit(cls: type[ScheduleConfig], horizon: str) -> None:
    """Where all steps are alike, a share of the one is a share of the other."""
    more = ENDED[cls]
    found, wanted = ended(cls, horizon=horizon, **more), ended(cls, horizon=128, **more)
    # Nobody knows how long a step will take: a warm-up in time is that of its beginning.
    in_time = 16 if horizon == "64 s" else 0
    assert found[in_time:] == wanted[in_time:]
    assert found[:in_time] == [step / 16 for step in range(in_time)]


@pytest.mark.parametrize("horizon", UNITS)
def test_the_closed_formula_in_every_unit(horizon: str) -> None:
    unit = UNITS[horizon]
    whole = 128 * STEP[unit]
    factor = resolve(Linear(horizon=horizon, warmup="12.5 %", floor=0.25)).build()
    for step in (0, 3, 15, 16, 70, 127, 128, 200):
        at, ahead = step * STEP[unit], 0 if unit == "seconds" else STEP[unit]
        rise = (at + ahead) / (whole / 8)
        t = (at - whole / 8) / (whole - whole / 8)
        wanted = min(1.0, rise) if step < 16 else max(0.25, 0.25 + 0.75 * (1 - t))
        assert factor(place(step)) == wanted


@pytest.mark.parametrize("warmup", ["16", "512 tokens", "0.25 epochs", "8 s", "12.5 %"])
@pytest.mark.parametrize("horizon", UNITS)
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


@pytest.mark.parametrize("length", ["32", "1024 tokens", "0.5 epochs", "16 s", "25 %"])
def test_the_last_part_of_wsd_in_another_unit(length: str) -> None:
    found = ended(Wsd, horizon="2 epochs", warmup=0, decay_length=length, floor=0)
    assert found == ended(Wsd, horizon=128, warmup=0, decay_length=32, floor=0)
    assert found[96] == 1 and found[97] < 1 and found[128] == 0


def test_phases_in_other_units() -> None:
    phases = (
        SchedulePhase(length="512 tokens", target=1.0),
        SchedulePhase(length="1 epoch", target=0.5),
    )
    steps = (SchedulePhase(length=16, target=1.0), SchedulePhase(length=64, target=0.5))
    assert ended(Piecewise, phases=phases) == pytest.approx(ended(Piecewise, phases=steps))


def test_an_inverse_root_in_epochs() -> None:
    found = ended(InverseSqrt, warmup="0.25 epochs")
    assert found[100] == math.sqrt(16 / 100)


@pytest.mark.parametrize("horizon", [10**18, f"{10**18} tokens", "1e18 epochs", "1e13 days"])
@pytest.mark.parametrize("cls", ENDED)
def test_no_length_takes_long(cls: type[ScheduleConfig], horizon: str | int) -> None:
    factor = resolve(cls(horizon=horizon, **ENDED[cls])).build()
    assert 0 <= factor(place(0)) < 1e-12 and 0 <= factor(place(10**9)) <= 1


def test_a_number_is_a_step() -> None:
    factor = resolve(Cosine(horizon=100)).build()
    assert factor(7) == factor(place(7))
    with pytest.raises(ValueError, match="a schedule that counts epochs needs a ScheduleTime"):
        resolve(Cosine(horizon="1 epoch")).build()(7)
