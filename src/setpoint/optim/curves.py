"""Schedules as functions of a step's position, with formulas relative to the peak rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from typing import Any, Final, NamedTuple

from setpoint.optim.schedule import (
    Decaying,
    InverseSqrt,
    Piecewise,
    Plateau,
    Polynomial,
    ScheduleConfig,
    SchedulePhase,
    Warmed,
    Wsd,
    rounded,
)
from setpoint.units import Duration, Length

Shape = Callable[[float], float]
"""Shape of a decay: from the completed share t, in [0, 1], to the remaining share of the
decay, 1 at t = 0 and 0 at t = 1."""

SHAPES: Final[Mapping[str, Shape]] = {
    "linear": lambda t: 1.0 - t,
    # SGDR without restarts (Loshchilov and Hutter, 2017).
    "cosine": lambda t: (1.0 + math.cos(math.pi * t)) / 2.0,
    # Fastest at the end.
    "sqrt": lambda t: math.sqrt(1.0 - t),
    # Fastest at the beginning (Haegele et al., 2024).
    "one_minus_sqrt": lambda t: 1.0 - math.sqrt(t),
    # Reflected exponential (Chen et al., 2021).
    "rex": lambda t: (1.0 - t) / (1.0 - t / 2.0),
}
"""Shapes by the names of schedules, or of the decays of `wsd`."""


class ScheduleTime(NamedTuple):
    """A step of a run, in the units in which schedules may count.

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
        """Start of the step in a unit.

        Raises:
            ValueError: the unit is unknown.
        """
        if unit not in self.begin:
            raise ValueError(f"a schedule that counts {unit} needs a ScheduleTime with {unit}")
        return self.begin[unit]


def nearest(horizon: Duration, place: ScheduleTime) -> tuple[str, int | float]:
    """The limit of which the largest fraction has elapsed.

    Returns:
        its unit and count; of equal limits, the first.
    """
    if len(horizon.limits) == 1:
        limit = horizon.limits[0]
    else:
        limit = max(horizon.limits, key=lambda limit: place.at(limit.unit) / limit.count)
    return limit.unit, limit.count


def measure(length: Length, unit: str, total: float, place: ScheduleTime) -> float:
    """Convert a length to another unit.

    A count in steps, for example, is converted to epochs by the mean over the run so far. This is
    exact if every step is a full batch; in seconds it is an estimate.

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
            curve = partial(_decay, config, _shape_of(config))
        case InverseSqrt():
            curve = partial(_inverse_sqrt, config)
        case Piecewise():
            curve = partial(_piecewise, config)
        case Warmed():
            curve = partial(_warmup, config)
        case _:
            return lambda position: 1.0
    return lambda position: curve(ScheduleTime.of(position))


def _shape_of(config: Decaying) -> Shape:
    if isinstance(config, Polynomial):
        return lambda t: (1.0 - t) ** config.power
    tag = config.decay if isinstance(config, Wsd) else type(config).__setpoint__.tag
    return SHAPES[tag or "linear"]


def _warmup(config: Warmed, place: ScheduleTime) -> float:
    """The warm-up in its own unit; a fraction is in the unit of the horizon."""
    length = config.warmup
    unit, total = length.unit, 0.0
    if length.share is not None and config.horizon is not None:
        unit, total = nearest(config.horizon, place)
    return _rise(config, place, unit, measure(length, unit, total, place))


def _rise(config: Warmed, place: ScheduleTime, unit: str, warmup: float) -> float:
    """Factor of a linear warm-up, 1 once it is over.

    With W = warmup and a = warmup_from: a + (1 - a) * min(1, e / W) at the end e of a step, or at
    its start (warmup_at). In steps, step W - 1 is the first with factor 1, and none has factor a;
    by the start, step W is the first with factor 1, and step 0 has factor a.
    """
    point = place.at(unit)
    if config.warmup_at == "end":
        point += place.extent.get(unit, 0.0)
    if point >= warmup:
        return 1.0
    return config.warmup_from + (1.0 - config.warmup_from) * (point / warmup)


def _warms_up_apart(config: Warmed, place: ScheduleTime, unit: str) -> bool:
    """True during a warm-up counted in a unit other than that of the curve."""
    length = config.warmup
    return bool(length) and length.unit not in ("%", unit) and place.at(length.unit) < length.count


def _decay(config: Decaying, shape: Shape, place: ScheduleTime) -> float:
    """Factor of a warm-up, the full rate, and a decay from B to the horizon T.

    With t = (at - B) / (T - B): floor + (1 - floor) * shape(t) for B <= at < T, or
    max(floor, shape(t)) with a hard floor; floor for at >= T.
    """
    unit, total = nearest(config.horizon, place)
    if _warms_up_apart(config, place, unit):
        return _warmup(config, place)
    warmup = measure(config.warmup, unit, total, place)
    begin, length = warmup, total - warmup
    if isinstance(config, Wsd):  # the decay gets the rest after a long warm-up
        decay = measure(config.decay_length, unit, total, place)
        if total - decay > begin:
            begin, length = total - decay, decay
    position = place.at(unit)
    if position < begin:
        return _rise(config, place, unit, warmup)
    if position >= total:
        return config.floor
    left = shape((position - begin) / length)
    if isinstance(config, Polynomial) and config.hard_floor:
        return max(config.floor, left)
    return config.floor + (1.0 - config.floor) * left


def _inverse_sqrt(config: InverseSqrt, place: ScheduleTime) -> float:
    """Factor of a warm-up of length W and an inverse root (Vaswani et al., 2017).

    With tau = timescale: max(floor, sqrt(tau / (at - W + tau))) for at >= W, which is sqrt(W / at)
    with tau = W.
    """
    scale = config.timescale
    unit, total = scale.unit, 0.0
    is_share = scale.share is not None or config.warmup.share is not None
    if is_share and config.horizon is not None:
        unit, total = nearest(config.horizon, place)
    if _warms_up_apart(config, place, unit):
        return _warmup(config, place)
    position, warmup = place.at(unit), measure(config.warmup, unit, total, place)
    if position < warmup:
        return _rise(config, place, unit, warmup)
    timescale = measure(scale, unit, total, place)
    return max(config.floor, math.sqrt(timescale / (position - warmup + timescale)))


def phase_ends(config: Piecewise, unit: str, total: float, place: ScheduleTime) -> list[float]:
    """Ends of the phases; a phase without a length gets what the others leave of the total."""
    lengths = [
        None if phase.length is None else measure(phase.length, unit, total, place)
        for phase in config.phases
    ]
    rest = max(total - sum(length for length in lengths if length is not None), 0)
    ends: list[float] = []
    for length in lengths:
        begin = ends[-1] if ends else 0.0
        ends.append(rounded(begin + (rest if length is None else length), unit))
    return ends


def _piecewise(config: Piecewise, place: ScheduleTime) -> float:
    """Factor of a piecewise curve; constant after the last phase.

    A step is an interval of the curve, and has the higher of the factors at its two ends: at its
    start in a falling phase, at its end in a rising one. So, as in a warm-up, a rise from 0 has no
    step with factor 0, and the last step of a rise reaches its target.
    """
    unit, total = config.own_unit, 0.0
    if config.horizon is not None:
        unit, total = nearest(config.horizon, place)
    position = place.at(unit)
    begin, source = 0.0, config.start
    for phase, end in zip(config.phases, phase_ends(config, unit, total, place), strict=True):
        if position < end:
            is_rising = phase.target > source
            point = position + place.extent.get(unit, 0.0) if is_rising else position
            return between(source, phase, (point - begin) / (end - begin))
        begin, source = end, phase.target
    return source


def between(source: float, phase: SchedulePhase, t: float) -> float:
    """Interpolate between the factor before a phase and its target.

        linear: source + (target - source) * t;
        cosine: source + (target - source) * (1 - cos(pi * t)) / 2;
        polynomial: source + (target - source) * t ** power;
        exponential: source ** (1 - t) * target ** t, equal ratios in equal times.

    Arguments:
        t: completed share of the phase.

    Returns:
        The factor; exactly source at 0 and target at 1.
    """
    target = phase.target
    if t >= 1.0:
        return target
    if phase.curve == "exponential":
        return source * (target / source) ** t
    if phase.curve == "cosine":
        t = (1.0 - math.cos(math.pi * t)) / 2.0
    elif phase.curve == "polynomial":
        t = t**phase.power
    return source + (target - source) * t


class PlateauCurve:
    """A warm-up times a factor that evaluations reduce.

    Follows `torch.optim.lr_scheduler.ReduceLROnPlateau` with a relative threshold: a value is an
    improvement below best * (1 - threshold), or above best * (1 + threshold) if the metric is
    maximized. After more than `patience` consecutive evaluations without improvement, the factor
    becomes max(floor, factor * level), and the next `cooldown` evaluations do not count.

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
        return _warmup(self.config, ScheduleTime.of(position)) * self.level

    def observe(self, value: float) -> None:
        """Record an evaluation.

        Arguments:
            value: value of the metric; NaN is not an improvement.
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
        """Restore a state; values of a different metric or text are dropped."""
        self.level = state["level"]
        config = self.config
        if (state["monitor"], state["evaluated_on"]) == (config.monitor, config.evaluated_on):
            self.best, self.waited, self.cooling = state["best"], state["waited"], state["cooling"]
