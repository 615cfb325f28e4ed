"""Schedules that come down to a floor from the end of the warm-up on."""

from __future__ import annotations

from .shapes import Shape
from .warmup import warmup_factor


def decay_factor(
    step: float,
    *,
    shape: Shape,
    warmup_steps: int,
    warmup_from: float,
    horizon_steps: int,
    floor: float,
    hard_floor: bool = False,
) -> float:
    """Compute the factor of a warm-up and a decay in a given shape.

    With W = warmup_steps, T = horizon_steps and t = (step - W) / (T - W):
    that of the warm-up for step < W;
    floor + (1 - floor) * shape(t) for W <= step < T, or max(floor, shape(t)) with a hard floor;
    floor for step >= T.

    Arguments:
        step: number of the update, the first is 0; a fraction where tokens are counted.
        shape: from 1 at 0 to 0 at 1.
        warmup_steps, warmup_from: of the warm-up; W is at most T.
        horizon_steps: T.
        floor: the lowest factor after the warm-up.
        hard_floor: whether the shape is cut off at the floor.

    Returns:
        The factor, in [floor, 1] after the warm-up.
    """
    if step < warmup_steps:
        return warmup_factor(step, warmup_steps=warmup_steps, warmup_from=warmup_from)
    if step >= horizon_steps:
        return floor
    left = shape((step - warmup_steps) / (horizon_steps - warmup_steps))
    return max(floor, left) if hard_floor else floor + (1.0 - floor) * left
