"""Learning-rate schedules as pure functions of the update's number."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from setpoint.optim.config import Constant, Cosine

Schedule = Callable[[int], float]
"""From the number of an update, counted from 0, to the factor on the peak learning rate."""


def constant_factor(step: int, *, warmup_steps: int) -> float:
    """Compute the factor of a constant schedule: min(1, (step + 1) / warmup_steps).

    Arguments:
        step: number of the update, the first is 0.
        warmup_steps: W; update W - 1 is the first with factor 1. No update has factor 0.

    Returns:
        The factor, in (0, 1].
    """
    return (step + 1) / warmup_steps if step < warmup_steps else 1.0


def cosine_factor(step: int, *, warmup_steps: int, horizon_steps: int, floor: float) -> float:
    """Compute the factor of a cosine schedule (SGDR without restarts, Loshchilov, Hutter, 2017).

    With W = warmup_steps and T = horizon_steps:
    (step + 1) / W for step < W;
    floor + (1 - floor) * (1 + cos(pi * (step - W) / (T - W))) / 2 for W <= step < T;
    floor for step >= T.

    Arguments:
        step: number of the update, the first is 0.
        warmup_steps: W, at most T.
        horizon_steps: T.
        floor: the lowest factor after the warm-up.

    Returns:
        The factor, in [floor, 1] after the warm-up.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if step >= horizon_steps:
        return floor
    progress = (step - warmup_steps) / (horizon_steps - warmup_steps)
    return floor + (1.0 - floor) * (1.0 + math.cos(math.pi * progress)) / 2.0


def build_constant(config: Constant) -> Schedule:
    """Make the schedule of a `constant` section.

    Arguments:
        config: the resolved section.

    Returns:
        `factor(step)`; it holds no state, so there is nothing to save or restore.
    """
    return partial(constant_factor, warmup_steps=config.warmup_steps)


def build_cosine(config: Cosine) -> Schedule:
    """Make the schedule of a `cosine` section.

    Arguments:
        config: the resolved section.

    Returns:
        `factor(step)`; it holds no state, so there is nothing to save or restore.
    """
    return partial(
        cosine_factor,
        warmup_steps=config.warmup_steps,
        horizon_steps=config.horizon_steps,
        floor=config.floor,
    )
