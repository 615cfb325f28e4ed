"""Schedules as functions of the position of a step, from formulas on the peak learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, Literal, NamedTuple

from setpoint.optim.schedule.config import (
    Cosine,
    Decaying,
    InverseSqrt,
    Piecewise,
    Plateau,
    Polynomial,
    Rex,
    ScheduleConfig,
    Warmed,
    Wsd,
    rounded,
)
from setpoint.units import Duration, Length

Shape = Callable[[float], float]
"""Shape of a decay: from the share t of the decay that is over, in [0, 1], to what is left of
the way, 1 at t = 0 and 0 at t = 1."""

Curve = Literal["linear", "cosine", "polynomial", "exponential"]


def linear(t: float) -> float:
    """Straight line: 1 - t."""
    return 1.0 - t


def cosine(t: float) -> float:
    """Half a cosine: (1 + cos(pi * t)) / 2 (SGDR without restarts; Loshchilov and Hutter, 2017)."""
    return (1.0 + math.cos(math.pi * t)) / 2.0


def sqrt(t: float) -> float:
    """Square root of the remainder 1 - t, which falls fastest at the end."""
    return math.sqrt(1.0 - t)


def one_minus_sqrt(t: float) -> float:
    """1 - sqrt(t), which falls fastest at the beginning (Haegele et al., 2024)."""
    return 1.0 - math.sqrt(t)


def rex(t: float) -> float:
    """Reflected exponential: (1 - t) / (1 - t / 2) (Chen et al., 2021)."""
    return (1.0 - t) / (1.0 - t / 2.0)


def polynomial(t: float, *, power: float) -> float:
    """(1 - t) ** power.

    Arguments:
        power: above 0; 1 is linear.
    """
    return (1.0 - t) ** power


def warmup_factor(
    position: float, *, warmup: float, warmup_from: float = 0.0, ahead: float = 1
) -> float:
    """Compute the factor of a linear warm-up, which is 1 after it.

    With W = warmup and a = warmup_from: a + (1 - a) * min(1, (at + ahead) / W).

    Arguments:
        warmup: W; in steps, step W - 1 is the first with factor 1, and none has factor a.
    """
    if position + ahead >= warmup:
        return 1.0
    return warmup_from + (1.0 - warmup_from) * ((position + ahead) / warmup)


def decay_factor(
    position: float,
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
    if position < begin:
        return warmup_factor(position, warmup=warmup, warmup_from=warmup_from, ahead=ahead)
    if position >= end:
        return floor
    left = shape((position - begin) / length)
    return max(floor, left) if hard_floor else floor + (1.0 - floor) * left


def inverse_sqrt_factor(
    position: float,
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
    if position < warmup:
        return warmup_factor(position, warmup=warmup, warmup_from=warmup_from, ahead=ahead)
    return max(floor, math.sqrt(timescale / (position - warmup + timescale)))


class Stretch(NamedTuple):
    """A phase with its position on the curve.

    Arguments:
        curve: interpolation between the two factors.
    """

    begin: float
    end: float
    source: float
    target: float
    curve: Curve
    power: float


def between(source: float, target: float, t: float, *, curve: Curve, power: float = 2.0) -> float:
    """Interpolate between two factors.

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


def spans(lengths: Sequence[float | None], total: float, unit: str) -> list[tuple[float, float]]:
    """Begin and end of each phase.

    Arguments:
        lengths: of the phases; None for one that takes the remainder.
    """
    rest = max(total - sum(length for length in lengths if length is not None), 0)
    ends: list[tuple[float, float]] = []
    begin = 0.0
    for length in lengths:
        end = rounded(begin + (rest if length is None else length), unit)
        ends.append((begin, end))
        begin = end
    return ends


def piecewise_factor(position: float, stretches: Sequence[Stretch], ahead: float = 1) -> float:
    """Factor of a piecewise curve; constant after the last phase.

    A step is an interval of the curve, from at to at + ahead, and has the higher of the factors at
    its two ends: t = (at - begin) / (end - begin) in a falling phase; in a rising one with at +
    ahead in place of at, and at most 1. So a rise from 0 has no step with factor 0, like a warm-up,
    and the last step of a rise reaches its target.

    Arguments:
        stretches: the phases in order, without gaps.
    """
    for begin, end, source, target, curve, power in stretches:
        if position < end:
            point = position + ahead if target > source else position
            t = (point - begin) / (end - begin)
            return between(source, target, t, curve=curve, power=power)
    return stretches[-1].target


class ScheduleTime(NamedTuple):
    """A step of a run, in the units that schedules may count in.

    Arguments:
        begin: its start by unit: `"steps"`, `"tokens"`, `"epochs"`, `"seconds"`.
        extent: its length by unit; 0 in seconds, which are not known before the step.
    """

    begin: Mapping[str, float]
    extent: Mapping[str, float]

    @classmethod
    def of(cls, position: ScheduleTime | float) -> ScheduleTime:
        """Time of a step, also from its number alone."""
        return (
            position
            if isinstance(position, ScheduleTime)
            else cls({"steps": position}, {"steps": 1})
        )

    def at(self, unit: str) -> float:
        """Begin of the step in a unit.

        Raises:
            ValueError: if it is unknown.
        """
        if unit not in self.begin:
            raise ValueError(f"a schedule that counts {unit} needs a ScheduleTime with {unit}")
        return self.begin[unit]


def nearest(horizon: Duration, place: ScheduleTime) -> tuple[str, int | float]:
    """The limit of which the largest share has elapsed.

    Returns:
        its unit and count; the first of several equal ones.
    """
    if len(horizon.limits) == 1:
        limit = horizon.limits[0]
    else:
        limit = max(horizon.limits, key=lambda limit: place.at(limit.unit) / limit.count)
    return limit.unit, limit.count


def measure(length: Length, unit: str, total: float, place: ScheduleTime) -> float:
    """Convert a length to another unit.

    A count in steps is converted to epochs, for instance, by the mean over the run so far: exact if
    every step is a full batch, and an estimate in seconds.

    Arguments:
        place: current time of the run; at its start other units are 0.
    """
    if length.share is not None:
        return rounded(length.share * total, unit)
    if length.unit == unit or not length:
        return length.count
    done = place.at(length.unit)
    return length.count * (place.at(unit) / done) if done else 0.0


Schedule = Callable[[ScheduleTime | float], float]
"""Factor on the peak learning rate by the place of a step, or by its number alone, from 0."""


def build_schedule(config: ScheduleConfig) -> Schedule:
    """Build the schedule of any section except a plateau's.

    Returns:
        `factor(place)`; it is stateless.
    """
    match config:
        case Decaying():
            return partial(_decaying, config, _shape_of(config))
        case InverseSqrt():
            return partial(_inverse_sqrt, config)
        case Piecewise():
            return partial(_piecewise, config)
        case Warmed():
            return partial(_warmup, config)
        case _:
            return lambda at: 1.0


def _shape_of(config: Decaying) -> Shape:
    match config:
        case Polynomial():
            return partial(polynomial, power=config.power)
        case Wsd():
            return {
                "linear": linear, "cosine": cosine, "sqrt": sqrt, "one_minus_sqrt": one_minus_sqrt
            }[config.decay]  # fmt: skip
        case Cosine():
            return cosine
        case Rex():
            return rex
        case _:
            return linear


def _warmup(config: Warmed, position: ScheduleTime | float) -> float:
    """The warm-up in its own unit; a share is in the unit of the horizon."""
    place, length = ScheduleTime.of(position), config.warmup
    unit, total = length.unit, 0.0
    if length.share is not None and config.horizon is not None:
        unit, total = nearest(config.horizon, place)
    return warmup_factor(
        place.at(unit),
        warmup=measure(length, unit, total, place),
        warmup_from=config.warmup_from,
        ahead=place.extent.get(unit, 0.0),
    )


def _start(config: Warmed, place: ScheduleTime, unit: str, total: float) -> dict[str, float] | None:
    """Warm-up and extent of a step in the unit of a curve, for its formula.

    Returns:
        None during a warm-up that is counted in another unit.
    """
    length = config.warmup
    if length and length.unit not in ("%", unit) and place.at(length.unit) < length.count:
        return None
    warmup = measure(length, unit, total, place)
    ahead = place.extent.get(unit, 0.0)
    return {"warmup": warmup, "warmup_from": config.warmup_from, "ahead": ahead}


def _decaying(config: Decaying, shape: Shape, position: ScheduleTime | float) -> float:
    place = ScheduleTime.of(position)
    unit, total = nearest(config.horizon, place)
    start = _start(config, place, unit, total)
    if start is None:
        return _warmup(config, place)
    begin = start["warmup"]
    length = total - begin
    if isinstance(config, Wsd):  # the decay takes what a long warm-up leaves
        decay = measure(config.decay_length, unit, total, place)
        if total - decay > begin:
            begin, length = total - decay, decay
    return decay_factor(
        place.at(unit),
        shape=shape,
        begin=begin,
        length=length,
        end=total,
        floor=config.floor,
        hard_floor=isinstance(config, Polynomial) and config.hard_floor,
        **start,
    )


def _inverse_sqrt(config: InverseSqrt, position: ScheduleTime | float) -> float:
    place, scale = ScheduleTime.of(position), config.timescale
    unit, total = scale.unit, 0.0
    is_share = scale.share is not None or config.warmup.share is not None
    if is_share and config.horizon is not None:
        unit, total = nearest(config.horizon, place)
    start = _start(config, place, unit, total)
    if start is None:
        return _warmup(config, place)
    timescale = measure(scale, unit, total, place)
    return inverse_sqrt_factor(place.at(unit), timescale=timescale, floor=config.floor, **start)


def _piecewise(config: Piecewise, position: ScheduleTime | float) -> float:
    place = ScheduleTime.of(position)
    unit, total = config.own_unit, 0.0
    if config.horizon is not None:
        unit, total = nearest(config.horizon, place)
    lengths = [
        None if phase.length is None else measure(phase.length, unit, total, place)
        for phase in config.phases
    ]
    stretches: list[Stretch] = []
    source = config.start
    for (begin, end), phase in zip(spans(lengths, total, unit), config.phases, strict=True):
        stretches.append(Stretch(begin, end, source, phase.target, phase.curve, phase.power))
        source = phase.target
    return piecewise_factor(place.at(unit), stretches, place.extent.get(unit, 0.0))


class PlateauCurve:
    """A warm-up times a factor that evaluations lower.

    The rule is that of `torch.optim.lr_scheduler.ReduceLROnPlateau` with a relative threshold: a
    value is an improvement below best * (1 - threshold), or above best * (1 + threshold) if the
    metric is maximized. After more than `patience` consecutive evaluations without improvement, the
    factor becomes max(floor, factor * level), and the next `cooldown` evaluations do not count.

    If the metric or its data have changed since a state was saved, only its level is restored.
    """

    def __init__(self, config: Plateau) -> None:
        self.config = config
        self.level = 1.0
        self.best: float | None = None
        self.waited = 0
        self.cooling = 0

    def __call__(self, position: ScheduleTime | float) -> float:
        """Factor of the warm-up times the level."""
        return _warmup(self.config, position) * self.level

    def observe(self, value: float) -> None:
        """Record an evaluation.

        Arguments:
            value: of the metric; NaN is not an improvement.
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
        """The level, and the values for the next comparison."""
        return {
            "monitor": self.config.monitor,
            "evaluated_on": self.config.evaluated_on,
            "level": self.level,
            "best": self.best,
            "waited": self.waited,
            "cooling": self.cooling,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state; values of another metric or text are dropped."""
        self.level = state["level"]
        config = self.config
        if (state["monitor"], state["evaluated_on"]) == (config.monitor, config.evaluated_on):
            self.best, self.waited, self.cooling = state["best"], state["waited"], state["cooling"]
