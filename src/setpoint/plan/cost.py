"""What a whole run takes: time, GPU-hours, money and energy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from setpoint.config import SetpointError

HOUR = 3600.0
PUE = 1.0
"""Energy of a data center by that of its computers; 1: cooling and losses are not counted."""


class Cost(NamedTuple):
    """What a run takes of all its GPUs.

    Arguments:
        steps: that it is expected to take.
        money: in the currency of the price; None without a price.
        kilowatt_hours: of the GPUs alone; None where their power is not known.
    """

    steps: int
    seconds: float
    gpu_hours: float
    money: float | None
    kilowatt_hours: float | None


def cost_of(
    limits: Mapping[str, float],
    step: float,
    ranks: int,
    price: float | None = None,
    power: float | None = None,
) -> Cost | None:
    """Compute what a run takes until the first of its limits.

    Arguments:
        limits: of the duration, in steps and seconds; others are left out.
        step: expected seconds of one.
        price: of a GPU for an hour.
        power: watts of a GPU.

    Returns:
        None where neither steps nor seconds limit the run.

    Raises:
        SetpointError: the time is up before the first step has ended.
    """
    seconds, steps = limits.get("seconds"), limits.get("steps")
    if seconds is not None and seconds < step:
        raise SetpointError(
            f"duration = {seconds:g} s ends before the first step, which is expected to take "
            f"{step:.3g} s\nValid: {_rounded_up(step)} s or more, or a duration in steps"
        )
    counts = [] if steps is None else [int(steps)]
    if seconds is not None:
        counts.append(int(seconds // step))
    if not counts:
        return None
    count = min(counts)
    whole = count * step
    hours = whole / HOUR * ranks
    energy = None if power is None else hours * power * PUE / 1000
    return Cost(count, whole, hours, None if price is None else hours * price, energy)


def _rounded_up(seconds: float) -> int:
    return int(-(-seconds // 1))
