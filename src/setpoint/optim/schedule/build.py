"""From the sections of schedules to functions of the place of a step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from . import shapes
from .config import (
    Cosine,
    Decaying,
    InverseSqrt,
    Linear,
    Piecewise,
    Polynomial,
    Rex,
    ScheduleConfig,
    Warmed,
    Wsd,
)
from .decay import decay_factor
from .inverse_sqrt import inverse_sqrt_factor
from .piecewise import Stretch, piecewise_factor, spans
from .place import Place, measure, nearest
from .plateau import PlateauCurve
from .warmup import warmup_factor
from .wsd import wsd_factor

if TYPE_CHECKING:
    from setpoint.units import Duration

    from .config import Plateau

Schedule = Callable[[Place | float], float]
"""From where a step lies, or the number of the step alone, counted from 0, to the factor on the
peak learning rate."""


# What the curves that only decay decay by.
SHAPES: dict[type[Decaying], shapes.Shape] = {
    Cosine: shapes.cosine,
    Linear: shapes.linear,
    Rex: shapes.rex,
}


def build_schedule(config: ScheduleConfig) -> Schedule:
    """Make the schedule of any section but a plateau's.

    Returns:
        `factor(place)`; it holds no state, so there is nothing to save or restore.
    """
    match config:
        case Polynomial():
            shape = partial(shapes.polynomial, power=config.power)
            return partial(_decaying, config, shape, config.hard_floor)
        case Wsd():
            return partial(_stable_then_decaying, config, getattr(shapes, config.decay))
        case Decaying():
            shape = next(shape for kind, shape in SHAPES.items() if isinstance(config, kind))
            return partial(_decaying, config, shape, False)
        case InverseSqrt():
            return partial(_rooted, config)
        case Piecewise():
            return partial(_in_phases, config)
        case Warmed():
            return partial(_rising, config)
        case _:
            return partial(_ones)


def build_plateau(config: Plateau) -> PlateauCurve:
    """Make the schedule of a `plateau` section, which keeps what evaluations came to.

    Returns:
        `factor(place)`, with the state of what evaluations came to.
    """
    return PlateauCurve(
        monitor=config.monitor,
        judged_on=config.judged_on,
        direction=config.direction,
        factor=config.factor,
        patience=config.patience,
        threshold=config.threshold,
        cooldown=config.cooldown,
        floor=config.floor,
        warmup=partial(_rising, config),
    )


def _ones(at: Place | float) -> float:
    del at
    return 1.0


def _rising(config: Warmed, at: Place | float) -> float:
    """The warm-up, in its own unit; a share in the unit of the horizon."""
    place, length = Place.of(at), config.warmup
    unit, whole = length.unit, 0.0
    if length.share is not None:
        unit, whole = nearest(_ended(config.horizon), place)
    return warmup_factor(
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


def _decaying(config: Decaying, shape: shapes.Shape, hard: bool, at: Place | float) -> float:
    place = Place.of(at)
    unit, whole = nearest(config.horizon, place)
    beginning = _beginning(config, place, unit, whole)
    if beginning is None:
        return _rising(config, place)
    return decay_factor(
        place.at(unit),
        shape=shape,
        horizon=whole,
        floor=config.floor,
        hard_floor=hard,
        **beginning,
    )


def _stable_then_decaying(config: Wsd, shape: shapes.Shape, at: Place | float) -> float:
    place = Place.of(at)
    unit, whole = nearest(config.horizon, place)
    beginning = _beginning(config, place, unit, whole)
    if beginning is None:
        return _rising(config, place)
    return wsd_factor(
        place.at(unit),
        shape=shape,
        horizon=whole,
        decay_length=measure(config.decay_length, unit, whole, place),
        floor=config.floor,
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
    return inverse_sqrt_factor(place.at(unit), timescale=timescale, floor=config.floor, **beginning)


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
    stretches: list[Stretch] = []
    source = config.start
    for (begin, end), phase in zip(spans(lengths, whole, unit), config.phases, strict=True):
        stretches.append(Stretch(begin, end, source, phase.target, phase.curve, phase.power))
        source = phase.target
    return piecewise_factor(place.at(unit), stretches, place.ahead(unit))


def _ended(horizon: Duration | None) -> Duration:
    """The horizon of a section that was checked to need one."""
    assert horizon is not None
    return horizon
