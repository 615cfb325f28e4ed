"""From the sections of schedules to functions of the place of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from typing import Any, NamedTuple

from setpoint.units import Duration, Length

from . import curves
from .config import (
    Cosine,
    Decaying,
    InverseSqrt,
    Linear,
    Piecewise,
    Plateau,
    Polynomial,
    Rex,
    ScheduleConfig,
    Warmed,
    Wsd,
    rounded,
)


class Place(NamedTuple):
    """A step of a run, in the units that schedules may count in.

    Attributes:
        begin: where it begins, by unit: `"steps"`, `"tokens"`, `"epochs"`, `"seconds"`.
        extent: how far it goes, by unit; 0 in seconds, as it is not known before the step.
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


Schedule = Callable[[Place | float], float]
"""From where a step lies, or the number of the step alone, counted from 0, to the factor on the
peak learning rate."""


def build_schedule(config: ScheduleConfig) -> Schedule:
    """Make the schedule of any section but a plateau's.

    Returns:
        `factor(place)`; it holds no state, so there is nothing to save or restore.
    """
    match config:
        case Decaying():
            return partial(_decaying, config, _shape_of(config))
        case InverseSqrt():
            return partial(_rooted, config)
        case Piecewise():
            return partial(_in_phases, config)
        case Warmed():
            return partial(_rising, config)
        case _:
            return _ones


def _ones(at: Place | float) -> float:
    del at
    return 1.0


def _shape_of(config: Decaying) -> curves.Shape:
    """What a schedule decays by."""
    match config:
        case Polynomial():
            return partial(curves.polynomial, power=config.power)
        case Wsd():
            return getattr(curves, config.decay)
        case _:
            shapes = {Cosine: curves.cosine, Linear: curves.linear, Rex: curves.rex}
            return next(shape for kind, shape in shapes.items() if isinstance(config, kind))


def _rising(config: Warmed, at: Place | float) -> float:
    """The warm-up, in its own unit; a share in the unit of the horizon."""
    place, length = Place.of(at), config.warmup
    unit, whole = length.unit, 0.0
    if length.share is not None:
        unit, whole = nearest(_ended(config.horizon), place)
    return curves.warmup_factor(
        place.at(unit),
        warmup=measure(length, unit, whole, place),
        warmup_from=config.warmup_from,
        ahead=place.ahead(unit),
    )


def _beginning(config: Warmed, place: Place, unit: str, whole: float) -> dict[str, float] | None:
    """The warm-up and the extent of a step in the unit of a curve, as its formula takes them.

    Returns:
        None where a warm-up that is counted in another unit is not over.
    """
    length = config.warmup
    if length and length.unit not in ("%", unit) and place.at(length.unit) < length.count:
        return None
    warmup = measure(length, unit, whole, place)
    return {"warmup": warmup, "warmup_from": config.warmup_from, "ahead": place.ahead(unit)}


def _decaying(config: Decaying, shape: curves.Shape, at: Place | float) -> float:
    place = Place.of(at)
    unit, whole = nearest(config.horizon, place)
    beginning = _beginning(config, place, unit, whole)
    if beginning is None:
        return _rising(config, place)
    begin = beginning["warmup"]
    length = whole - begin
    if isinstance(config, Wsd):
        length = measure(config.decay_length, unit, whole, place)
        if whole - length > begin:
            begin = whole - length
        else:  # the decay takes what a long warm-up leaves
            length = whole - begin
    return curves.decay_factor(
        place.at(unit),
        shape=shape,
        begin=begin,
        length=length,
        end=whole,
        floor=config.floor,
        hard_floor=isinstance(config, Polynomial) and config.hard_floor,
        **beginning,
    )


def _rooted(config: InverseSqrt, at: Place | float) -> float:
    place, scale = Place.of(at), config.timescale
    unit, whole = scale.unit, 0.0
    if scale.share is not None or config.warmup.share is not None:
        unit, whole = nearest(_ended(config.horizon), place)
    beginning = _beginning(config, place, unit, whole)
    if beginning is None:
        return _rising(config, place)
    timescale = measure(scale, unit, whole, place)
    return curves.inverse_sqrt_factor(
        place.at(unit), timescale=timescale, floor=config.floor, **beginning
    )


def _in_phases(config: Piecewise, at: Place | float) -> float:
    place = Place.of(at)
    if config.horizon is not None:
        unit, whole = nearest(config.horizon, place)
    else:
        unit, whole = config.own_unit, 0.0
    lengths = [
        None if phase.length is None else measure(phase.length, unit, whole, place)
        for phase in config.phases
    ]
    stretches: list[curves.Stretch] = []
    source = config.start
    for (begin, end), phase in zip(curves.spans(lengths, whole, unit), config.phases, strict=True):
        stretches.append(curves.Stretch(begin, end, source, phase.target, phase.curve, phase.power))
        source = phase.target
    return curves.piecewise_factor(place.at(unit), stretches, place.ahead(unit))


def _ended(horizon: Duration | None) -> Duration:
    """The horizon of a section that was checked to need one."""
    assert horizon is not None
    return horizon


class PlateauCurve:
    """A warm-up times a factor that evaluations lower.

    The rule is that of `torch.optim.lr_scheduler.ReduceLROnPlateau` with a relative threshold:
    a value is a gain if it is below best * (1 - threshold), or above best * (1 + threshold) where
    more is better. After more than `patience` evaluations in a row without a gain, the factor
    becomes max(floor, factor * level), and the next `cooldown` evaluations are not counted.

    The state holds what evaluations have come to. A state of another metric, or of one that is
    measured on other data or as often, gives its level only.
    """

    def __init__(self, config: Plateau) -> None:
        self.config = config
        self.level = 1.0
        self.best: float | None = None
        self.waited = 0
        self.cooling = 0

    def __call__(self, at: Place | float) -> float:
        """Compute the factor: that of the warm-up times the level."""
        return _rising(self.config, at) * self.level

    def observe(self, value: float) -> None:
        """Take notice of an evaluation.

        Arguments:
            value: of the metric; NaN is no gain.
        """
        if self._is_gain(value):
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        if self.cooling:
            self.cooling, self.waited = self.cooling - 1, 0
        if self.waited > self.config.patience:
            self.level = max(self.config.floor, self.level * self.config.factor)
            self.cooling, self.waited = self.config.cooldown, 0

    def _is_gain(self, value: float) -> bool:
        if self.config.direction == "max":
            best = -inf if self.best is None else self.best
            return value > best * (1.0 + self.config.threshold)
        best = inf if self.best is None else self.best
        return value < best * (1.0 - self.config.threshold)

    def state_dict(self) -> dict[str, Any]:
        """What evaluations have come to."""
        return {
            "monitor": self.config.monitor,
            "evaluated_on": self.config.evaluated_on,
            "level": self.level,
            "best": self.best,
            "waited": self.waited,
            "cooling": self.cooling,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken; values of another metric or text are forgotten."""
        self.level = state["level"]
        config = self.config
        if (state["monitor"], state["evaluated_on"]) == (config.monitor, config.evaluated_on):
            self.best, self.waited, self.cooling = state["best"], state["waited"], state["cooling"]
