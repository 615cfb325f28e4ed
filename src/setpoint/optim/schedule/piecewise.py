"""Curves of phases, each from where the one before ended to a target of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

Curve = Literal["linear", "cosine", "polynomial", "exponential"]


class Stretch(NamedTuple):
    """A phase with its place on the curve.

    Arguments:
        begin, end: in updates from the start of the run; fractions where a share gives them.
        source, target: the factors at its two ends.
        curve: how the factor gets from one to the other.
        power: of a polynomial.
    """

    begin: float
    end: float
    source: float
    target: float
    curve: Curve
    power: float


def between(source: float, target: float, t: float, *, curve: Curve, power: float = 2.0) -> float:
    """Compute a factor on the way from one to another.

    linear: source + (target - source) * t;
    cosine: source + (target - source) * (1 - cos(pi * t)) / 2;
    polynomial: source + (target - source) * t ** power;
    exponential: source ** (1 - t) * target ** t, equal ratios in equal times.

    Arguments:
        source, target: the ends; above 0 for exponential.
        t: the share of the way that is over, in [0, 1].
        curve: which of them.
        power: of a polynomial.

    Returns:
        The factor; exactly source at 0 and target at 1.
    """
    if t >= 1.0:
        return target
    if curve == "exponential":
        return source * (target / source) ** t
    if curve == "cosine":
        t = (1.0 - math.cos(math.pi * t)) / 2.0
    elif curve == "polynomial":
        t = t**power
    return source + (target - source) * t


def piecewise_factor(step: float, stretches: Sequence[Stretch]) -> float:
    """Compute the factor of a curve of phases; after the last one its target stays.

    An update is a stretch of the curve itself, from step to step + 1, and has the higher of the
    factors at its two ends: t = (step - begin) / (end - begin) in a phase that falls, with step + 1
    in place of step, and at most 1, in one that rises. So a rise from 0 does not begin with an
    update of nothing, as no warm-up does, and the last update of a rise is at its target.

    Arguments:
        step: number of the update, the first is 0; a fraction where tokens are counted.
        stretches: the phases, in order, without gaps.

    Returns:
        The factor.
    """
    for begin, end, source, target, curve, power in stretches:
        if step < end:
            at = step + 1.0 if target > source else step
            return between(source, target, (at - begin) / (end - begin), curve=curve, power=power)
    return stretches[-1].target
