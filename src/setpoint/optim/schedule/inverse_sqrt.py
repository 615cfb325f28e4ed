"""The inverse root of the update's number, which needs no end (Vaswani et al., 2017)."""

from __future__ import annotations

import math

from .warmup import warmup_factor


def inverse_sqrt_factor(
    step: float, *, warmup_steps: int, warmup_from: float, timescale: int, floor: float
) -> float:
    """Compute the factor of a warm-up and an inverse root.

    With W = warmup_steps and tau = timescale:
    that of the warm-up for step < W;
    max(floor, sqrt(tau / (step - W + tau))) for step >= W.
    With tau = W that is sqrt(W / step).

    Arguments:
        step: number of the update, the first is 0; a fraction where tokens are counted.
        warmup_steps, warmup_from: of the warm-up.
        timescale: tau; tau updates after the warm-up the factor is sqrt(1 / 2).
        floor: the lowest factor after the warm-up.

    Returns:
        The factor, in [floor, 1] after the warm-up.
    """
    if step < warmup_steps:
        return warmup_factor(step, warmup_steps=warmup_steps, warmup_from=warmup_from)
    return max(floor, math.sqrt(timescale / (step - warmup_steps + timescale)))
