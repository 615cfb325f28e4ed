"""Schedules that come down to a floor from the end of the warm-up on."""

from __future__ import annotations

from .shapes import Shape
from .warmup import warmup_factor


def decay_factor(
    at: float,
    *,
    shape: Shape,
    warmup: float,
    warmup_from: float,
    horizon: float,
    floor: float,
    hard_floor: bool = False,
    ahead: float = 1,
) -> float:
    """Compute the factor of a warm-up and a decay in a given shape.

    With W = warmup, T = horizon and t = (at - W) / (T - W):
    that of the warm-up for at < W;
    floor + (1 - floor) * shape(t) for W <= at < T, or max(floor, shape(t)) with a hard floor;
    floor for at >= T.

    Arguments:
        at: where the step begins, in the unit of the lengths; the number of the step, from 0.
        warmup, warmup_from: of the warm-up; W is at most T.
    """
    if at < warmup:
        return warmup_factor(at, warmup=warmup, warmup_from=warmup_from, ahead=ahead)
    if at >= horizon:
        return floor
    left = shape((at - warmup) / (horizon - warmup))
    return max(floor, left) if hard_floor else floor + (1.0 - floor) * left
