"""The formulas of the schedules: factors on the peak learning rate, by the place of a step.

All count in one unit; where a step begins is `at`, from 0, and how far it goes `ahead`, 1 in steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from .config import rounded

Shape = Callable[[float], float]
"""How a factor decays: from the share t of the decay that is over, in [0, 1], to what is left of
the way, 1 at t = 0 and 0 at t = 1."""

Curve = Literal["linear", "cosine", "polynomial", "exponential"]


def linear(t: float) -> float:
    """A straight line: 1 - t."""
    return 1.0 - t


def cosine(t: float) -> float:
    """Half a cosine: (1 + cos(pi * t)) / 2 (SGDR without restarts; Loshchilov and Hutter, 2017)."""
    return (1.0 + math.cos(math.pi * t)) / 2.0


def sqrt(t: float) -> float:
    """The square root of what is left, of 1 - t, which falls fastest at the end."""
    return math.sqrt(1.0 - t)


def one_minus_sqrt(t: float) -> float:
    """1 - sqrt(t), which falls fastest at the beginning (Haegele et al., 2024)."""
    return 1.0 - math.sqrt(t)


def rex(t: float) -> float:
    """The reflected exponential profile: (1 - t) / (1 - t / 2) (Chen et al., 2021)."""
    return (1.0 - t) / (1.0 - t / 2.0)


def polynomial(t: float, *, power: float) -> float:
    """A power of what is left: (1 - t) ** power.

    Arguments:
        power: above 0; 1 is a straight line.
    """
    return (1.0 - t) ** power


def warmup_factor(at: float, *, warmup: float, warmup_from: float = 0.0, ahead: float = 1) -> float:
    """Compute the factor of a linear warm-up, which is 1 after it.

    With W = warmup and a = warmup_from: a + (1 - a) * min(1, (at + ahead) / W).

    Arguments:
        warmup: W; in steps, step W - 1 is the first with factor 1, and none has factor a.
    """
    if at + ahead >= warmup:
        return 1.0
    return warmup_from + (1.0 - warmup_from) * ((at + ahead) / warmup)


def decay_factor(
    at: float,
    *,
    shape: Shape,
    warmup: float,
    warmup_from: float,
    begin: float,
    length: float,
    end: float,
    floor: float,
    hard_floor: bool = False,
    ahead: float = 1,
) -> float:
    """Compute the factor of a warm-up, the full rate, and a decay in a given shape.

    With B = begin, T = end and t = (at - B) / length:
    that of the warm-up, which ends in 1, for at < B;
    floor + (1 - floor) * shape(t) for B <= at < T, or max(floor, shape(t)) with a hard floor;
    floor for at >= T.

    Arguments:
        warmup: at most B; B itself where the decay follows it at once.
        length: T - B, as it was given.
    """
    if at < begin:
        return warmup_factor(at, warmup=warmup, warmup_from=warmup_from, ahead=ahead)
    if at >= end:
        return floor
    left = shape((at - begin) / length)
    return max(floor, left) if hard_floor else floor + (1.0 - floor) * left


def inverse_sqrt_factor(
    at: float,
    *,
    warmup: float,
    warmup_from: float,
    timescale: float,
    floor: float,
    ahead: float = 1,
) -> float:
    """Compute the factor of a warm-up and an inverse root (Vaswani et al., 2017).

    With W = warmup and tau = timescale:
    that of the warm-up for at < W;
    max(floor, sqrt(tau / (at - W + tau))) for at >= W.
    With tau = W that is sqrt(W / at).

    Arguments:
        timescale: tau; tau steps after the warm-up the factor is sqrt(1 / 2).
    """
    if at < warmup:
        return warmup_factor(at, warmup=warmup, warmup_from=warmup_from, ahead=ahead)
    return max(floor, math.sqrt(timescale / (at - warmup + timescale)))


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
    step of nothing, as no warm-up does, and the last step of a rise is at its target.

    Arguments:
        stretches: the phases, in order, without gaps.
    """
    for begin, end, source, target, curve, power in stretches:
        if at < end:
            here = at + ahead if target > source else at
            t = (here - begin) / (end - begin)
            return between(source, target, t, curve=curve, power=power)
    return stretches[-1].target
