"""Curves of phases, each from where the one before ended to a target of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from .config import rounded

Curve = Literal["linear", "cosine", "polynomial", "exponential"]


class Stretch(NamedTuple):
    """A phase with its place on the curve.

    Arguments:
        curve: how the factor gets from one to the other.
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


def spans(lengths: Sequence[float | None], whole: float, unit: str) -> list[tuple[float, float]]:
    """Where each phase begins and ends.

    Arguments:
        lengths: of the phases; None for one that fills up what the others leave.
    """
    rest = max(whole - sum(length for length in lengths if length is not None), 0)
    found: list[tuple[float, float]] = []
    begin = 0.0
    for length in lengths:
        end = rounded(begin + (rest if length is None else length), unit)
        found.append((begin, end))
        begin = end
    return found


def piecewise_factor(at: float, stretches: Sequence[Stretch], ahead: float = 1) -> float:
    """Compute the factor of a curve of phases; after the last one its target stays.

    A step is a stretch of the curve itself, from at to at + ahead, and has the higher of the
    factors at its two ends: t = (at - begin) / (end - begin) in a phase that falls, with at + ahead
    in place of at, and at most 1, in one that rises. So a rise from 0 does not begin with an
    update of nothing, as no warm-up does, and the last update of a rise is at its target.

    Arguments:
        at: where the step begins, in the unit of the stretches; the number of the step, from 0.
        stretches: the phases, in order, without gaps.
    """
    for begin, end, source, target, curve, power in stretches:
        if at < end:
            here = at + ahead if target > source else at
            t = (here - begin) / (end - begin)
            return between(source, target, t, curve=curve, power=power)
    return stretches[-1].target
