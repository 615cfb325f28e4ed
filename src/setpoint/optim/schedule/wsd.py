"""Warm-up, stable, decay: the full rate until the last part of the run (Hu et al., 2024)."""

from __future__ import annotations

from .shapes import Shape
from .warmup import warmup_factor


def wsd_factor(
    at: float,
    *,
    shape: Shape,
    warmup: float,
    warmup_from: float,
    horizon: float,
    decay_length: float,
    floor: float,
    ahead: float = 1,
) -> float:
    """Compute the factor of a schedule that decays over the last updates only.

    With T = horizon, D = decay_length and t = (at - (T - D)) / D:
    that of the warm-up, which ends in 1, for at < T - D;
    floor + (1 - floor) * shape(t) for T - D <= at < T;
    floor for at >= T.

    Arguments:
        at: where the step begins, in the unit of the lengths; the number of the step, from 0.
        decay_length: D; with the warm-up at most T.
        floor: the lowest factor after the warm-up.
    """
    begin = horizon - decay_length
    if at < begin:
        return warmup_factor(at, warmup=warmup, warmup_from=warmup_from, ahead=ahead)
    if at >= horizon:
        return floor
    return floor + (1.0 - floor) * shape((at - begin) / decay_length)
