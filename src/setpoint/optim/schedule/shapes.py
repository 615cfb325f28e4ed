"""The shapes in which a factor comes down: from 1 at the share t = 0 to 0 at t = 1."""

from __future__ import annotations

import math
from collections.abc import Callable

Shape = Callable[[float], float]
"""From the share of a decay that is over, in [0, 1], to what is left of the way, in [0, 1]."""


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
