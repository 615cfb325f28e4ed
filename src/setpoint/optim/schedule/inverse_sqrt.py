"""The inverse root of the update's number, which needs no end (Vaswani et al., 2017)."""

from __future__ import annotations

import math

from .warmup import warmup_factor


def inverse_sqrt_factor(
    at: float,
    *,
    warmup: float,
    warmup_from: float,
    timescale: float,
    floor: float,
    ahead: float = 1,
) -> float:
    """Compute the factor of a warm-up and an inverse root.

    With W = warmup and tau = timescale:
    that of the warm-up for at < W;
    max(floor, sqrt(tau / (at - W + tau))) for at >= W.
    With tau = W that is sqrt(W / at).

    Arguments:
        at: where the step begins, in the unit of the lengths; the number of the step, from 0.
        timescale: tau; tau updates after the warm-up the factor is sqrt(1 / 2).
    """
    if at < warmup:
        return warmup_factor(at, warmup=warmup, warmup_from=warmup_from, ahead=ahead)
    return max(floor, math.sqrt(timescale / (at - warmup + timescale)))
