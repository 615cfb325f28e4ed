"""Where a step lies in a run, and how lengths in other units are measured there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from setpoint.units import Duration, Length

from .config import rounded


class Place(NamedTuple):
    """A step of a run, in the units that schedules may count in.

    Attributes:
        begin: where it begins, by unit: `"steps"`, `"tokens"`, `"epochs"`, `"seconds"`.
        extent: how far it goes, by unit; 0 in seconds, as nobody knows before the step.
    """

    begin: Mapping[str, float]
    extent: Mapping[str, float]

    @classmethod
    def of(cls, at: Place | float) -> Place:
        """Make a place, also from the number of a step alone."""
        return at if isinstance(at, Place) else cls({"steps": at}, {"steps": 1})

    def at(self, unit: str) -> float:
        """Where the step begins.

        Raises:
            ValueError: if that is not known.
        """
        if unit not in self.begin:
            raise ValueError(f"a schedule that counts {unit} needs a Place with {unit}")
        return self.begin[unit]

    def ahead(self, unit: str) -> float:
        """How far the step goes.

        Returns:
            its extent; 0 where that is not known.
        """
        return self.extent.get(unit, 0.0)


def nearest(horizon: Duration, place: Place) -> tuple[str, int | float]:
    """Find the limit of which the largest share is over.

    Returns:
        its unit and count; those of the first if there are several.
    """
    if len(horizon.limits) == 1:
        limit = horizon.limits[0]
    else:
        limit = max(horizon.limits, key=lambda limit: place.at(limit.unit) / limit.count)
    return limit.unit, limit.count


def measure(length: Length, unit: str, whole: float, place: Place) -> float:
    """A length in another unit.

    A count in steps is converted to epochs, for instance, by the mean over the run up to the place:
    exact where every step is a full batch, and an estimate in seconds.

    Arguments:
        place: where the run is; at its very beginning other units come to 0.
    """
    if length.share is not None:
        return rounded(length.share * whole, unit)
    if length.unit == unit or not length:
        return length.count
    done = place.at(length.unit)
    return length.count * (place.at(unit) / done) if done else 0.0
