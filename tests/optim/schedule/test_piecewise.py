"""Curves of phases."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, MultiStepLR

from setpoint.config import resolve
from setpoint.optim.schedule.config import Cosine, Linear, Piecewise, SchedulePhase
from setpoint.optim.schedule.curves import Curve, Stretch, between, piecewise_factor, spans
from setpoint.units import Duration

CURVES: tuple[Curve, ...] = ("linear", "cosine", "polynomial", "exponential")


@pytest.mark.parametrize("curve", CURVES)
def test_ends(curve: Curve) -> None:
    for source, target in ((1.0, 0.1), (0.1, 1.0), (0.3, 0.3)):
        assert between(source, target, 0.0, curve=curve) == source
        assert between(source, target, 1.0, curve=curve) == target
        assert between(source, target, 1.5, curve=curve) == target


@given(st.floats(0, 1))
def test_against_decimals(t: float) -> None:
    share, way = Decimal(t), Decimal("0.99")
    at = {
        "linear": 1 - way * share,
        "polynomial": 1 - way * share * share * share,
        "exponential": Decimal("0.01") ** share,
    }
    for curve in ("linear", "polynomial", "exponential"):
        found = between(1.0, 0.01, t, curve=curve, power=3.0)
        assert found == pytest.approx(float(at[curve]), rel=1e-12)


def test_an_update_has_the_higher_end() -> None:
    up, down = (
        Stretch(0, 4, 0.0, 1.0, "linear", 2.0),
        Stretch(4, 6, 1.0, 0.0, "linear", 2.0),
    )
    factors = [piecewise_factor(step, [up, down]) for step in range(8)]
    assert factors == [0.25, 0.5, 0.75, 1.0, 1.0, 0.5, 0.0, 0.0]
    # Between two updates, too.
    assert piecewise_factor(3.5, [up, down]) == 1.0 and piecewise_factor(5.5, [up, down]) == 0.25


@pytest.mark.parametrize(("cls", "curve"), [(Linear, "linear"), (Cosine, "cosine")])
def test_a_warmup_and_a_decay_are_two_phases(cls: type[Linear], curve: Curve) -> None:
    one = resolve(cls(horizon=100, warmup=10, floor=0.1)).build()
    phases = (SchedulePhase(length=10, target=1.0), SchedulePhase(target=0.1, curve=curve))
    other = resolve(Piecewise(phases=phases, horizon=100)).build()
    steps = [*range(120), 3.25, 40.5]
    assert [other(s) for s in steps] == pytest.approx([one(s) for s in steps], rel=1e-14)


def rates(scheduler: type, steps: int, **arguments: object) -> list[float]:
    optimizer = SGD([nn.Parameter(nn.Parameter().new_zeros(1))], lr=1.0)
    schedule = scheduler(optimizer, **arguments)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


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
    assert spans([0.1 * 7] * 10, 7, "steps")[-1][1] == 7
    left = (
        SchedulePhase(length=3, target=1.0),
        SchedulePhase(target=0.5),
        SchedulePhase(length="25 %", target=0.1),
    )
    factor = resolve(Piecewise(phases=left, horizon=40)).build()
    assert spans([3, None, 10], 40, "steps") == [(0, 3), (3, 30), (30, 40)]
    assert [factor(step) for step in (2, 3, 30, 40)] == [1, 1, 0.5, 0.1]


def test_without_shares_there_is_no_horizon() -> None:
    section = resolve(
        Piecewise(phases=(SchedulePhase(length=3, target=1.0), SchedulePhase(length=4, target=0.5)))
    )
    assert section.horizon is None and section.end == Duration(7)
