"""Warm-up, stable, decay."""

from __future__ import annotations

from setpoint.optim.schedule.curves import decay_factor, linear


def factor(step: float, decay: int = 4) -> float:
    return decay_factor(
        step, shape=linear, warmup=4, warmup_from=0.0, begin=12 - decay, length=decay, end=12,
        floor=0.5,
    )  # fmt: skip


def test_by_hand() -> None:
    rise, fall = [0.25, 0.5, 0.75, 1], [1, 0.875, 0.75, 0.625]
    assert [factor(step) for step in range(14)] == [*rise, 1, 1, 1, 1, *fall, 0.5, 0.5]
    assert factor(10.5) == 0.6875


def test_nothing_between_warmup_and_decay() -> None:
    assert [factor(step, 8) for step in (3, 4, 5, 8, 12)] == [1, 1, 0.9375, 0.75, 0.5]
