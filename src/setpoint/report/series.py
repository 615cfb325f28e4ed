"""What a plot shows: points under a label."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Series(NamedTuple):
    """The points of one run."""

    label: str
    points: Sequence[tuple[float, float]]

    def drawable(self) -> list[tuple[float, float]]:
        """The points that a plot has a place for."""
        return [pair for pair in self.points if all(map(math.isfinite, pair))]


class Plot(NamedTuple):
    """A plot, whatever draws it.

    Arguments:
        linear: whether the axes begin at 0 and equal differences are equal distances, whatever
            they cover.
    """

    title: str
    x: str
    y: str
    series: Sequence[Series]
    lines: bool = True
    linear: bool = False

    def is_logarithmic(self, axis: int) -> bool:
        """Whether an axis covers more than a factor of 30, all above 0."""
        values = [pair[axis] for series in self.series for pair in series.drawable()]
        if self.linear or (self.lines and axis == 0):
            return False  # steps are counted, not multiplied
        return bool(values) and min(values) > 0 and max(values) / min(values) > 30
