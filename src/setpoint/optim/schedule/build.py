"""From the sections of schedules to functions of the update's number."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from . import shapes
from .decay import decay_factor
from .inverse_sqrt import inverse_sqrt_factor
from .piecewise import Stretch, piecewise_factor
from .plateau import PlateauCurve
from .warmup import warmup_factor
from .wsd import wsd_factor

if TYPE_CHECKING:
    from .config import (
        Constant,
        Cosine,
        Decaying,
        InverseSqrt,
        Linear,
        NoSchedule,
        Piecewise,
        Plateau,
        Polynomial,
        Rex,
        Wsd,
    )

Schedule = Callable[[float], float]
"""From the number of an update, counted from 0, to the factor on the peak learning rate."""


def build_none(config: NoSchedule) -> Schedule:
    """Make the schedule of a `none` section.

    Arguments:
        config: the resolved section.

    Returns:
        `factor(step)`, which is 1.
    """
    del config
    return partial(warmup_factor, warmup_steps=0)


def build_constant(config: Constant) -> Schedule:
    """Make the schedule of a `constant` section.

    Arguments:
        config: the resolved section.

    Returns:
        `factor(step)`; it holds no state, so there is nothing to save or restore.
    """
    return partial(warmup_factor, warmup_steps=config.warmup_steps, warmup_from=config.warmup_from)


def _decay(config: Decaying, shape: shapes.Shape, hard_floor: bool = False) -> Schedule:
    return partial(
        decay_factor,
        shape=shape,
        warmup_steps=config.warmup_steps,
        warmup_from=config.warmup_from,
        horizon_steps=config.horizon_steps,
        floor=config.floor,
        hard_floor=hard_floor,
    )


def build_cosine(config: Cosine) -> Schedule:
    """Make the schedule of a `cosine` section.

    Arguments:
        config: the resolved section.

    Returns:
        `factor(step)`.
    """
    return _decay(config, shapes.cosine)


def build_linear(config: Linear) -> Schedule:
    """Make the schedule of a `linear` section.

    Arguments:
        config: the resolved section.

    Returns:
        `factor(step)`.
    """
    return _decay(config, shapes.linear)


def build_polynomial(config: Polynomial) -> Schedule:
    """Make the schedule of a `polynomial` section.

    Arguments:
        config: the resolved section.

    Returns:
        `factor(step)`.
    """
    return _decay(config, partial(shapes.polynomial, power=config.power), config.hard_floor)


def build_rex(config: Rex) -> Schedule:
    """Make the schedule of a `rex` section.

    Arguments:
        config: the resolved section.

    Returns:
        `factor(step)`.
    """
    return _decay(config, shapes.rex)


def build_wsd(config: Wsd) -> Schedule:
    """Make the schedule of a `wsd` section.

    Arguments:
        config: the resolved section.

    Returns:
        `factor(step)`.
    """
    return partial(
        wsd_factor,
        shape=getattr(shapes, config.decay),
        warmup_steps=config.warmup_steps,
        warmup_from=config.warmup_from,
        horizon_steps=config.horizon_steps,
        decay_steps=config.decay_steps,
        floor=config.floor,
    )


def build_inverse_sqrt(config: InverseSqrt) -> Schedule:
    """Make the schedule of an `inverse_sqrt` section.

    Arguments:
        config: the resolved section.

    Returns:
        `factor(step)`.
    """
    return partial(
        inverse_sqrt_factor,
        warmup_steps=config.warmup_steps,
        warmup_from=config.warmup_from,
        timescale=config.timescale,
        floor=config.floor,
    )


def build_piecewise(config: Piecewise) -> Schedule:
    """Make the schedule of a `piecewise` section.

    Arguments:
        config: the resolved section.

    Returns:
        `factor(step)`.
    """
    stretches: list[Stretch] = []
    source = config.start
    for (begin, end), phase in zip(config.spans(), config.phases, strict=True):
        stretches.append(Stretch(begin, end, source, phase.target, phase.curve, phase.power))
        source = phase.target
    return partial(piecewise_factor, stretches=tuple(stretches))


def build_plateau(config: Plateau) -> PlateauCurve:
    """Make the schedule of a `plateau` section.

    Arguments:
        config: the resolved section.

    Returns:
        `factor(step)`, which is told of evaluations and keeps what they came to.
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
        warmup_steps=config.warmup_steps,
        warmup_from=config.warmup_from,
    )
