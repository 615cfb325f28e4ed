"""Warm-up, stable, decay: the full rate until the last part of the run (Hu et al., 2024)."""

from __future__ import annotations

from .shapes import Shape
from .warmup import warmup_factor


def wsd_factor(
    step: float,
    *,
    shape: Shape,
    warmup_steps: int,
    warmup_from: float,
    horizon_steps: int,
    decay_steps: int,
    floor: float,
) -> float:
    """Compute the factor of a schedule that decays over the last updates only.

    With T = horizon_steps, D = decay_steps and t = (step - (T - D)) / D:
    that of the warm-up, which ends in 1, for step < T - D;
    floor + (1 - floor) * shape(t) for T - D <= step < T;
    floor for step >= T.

    Arguments:
        step: number of the update, the first is 0; a fraction where tokens are counted.
        shape: from 1 at 0 to 0 at 1.
        warmup_steps, warmup_from: of the warm-up.
        horizon_steps: T.
        decay_steps: D; with the warm-up at most T.
        floor: the lowest factor after the warm-up.

    Returns:
        The factor, in [floor, 1] after the warm-up.
    """
    begin = horizon_steps - decay_steps
    if step < begin:
        return warmup_factor(step, warmup_steps=warmup_steps, warmup_from=warmup_from)
    if step >= horizon_steps:
        return floor
    return floor + (1.0 - floor) * shape((step - begin) / decay_steps)
