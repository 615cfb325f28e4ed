"""Between Optuna's parameters and the points of a sweep."""

from __future__ import annotations

import hashlib
from typing import Any

from setpoint.sweep_space.distribution import Choice, Distribution, Integer, LogUniform
from setpoint.sweep_space.naming import value_text
from setpoint.sweep_space.setting import Point, Setting, axis_origin

DIGITS = 5  # of a proposed number, so that it reads well

Axes = dict[tuple[str, ...], Distribution]


class Proposals:
    """Says what Optuna may propose, and what a proposal means."""

    def __init__(self, axes: Axes) -> None:
        self.axes = axes
        self._choices = {path: _choices(axis) for path, axis in axes.items()}

    def point(self, params: dict[str, Any]) -> Point:
        """What a trial sets."""
        found: list[Setting] = []
        for path, axis in self.axes.items():
            key = ".".join(path)
            value = params[key]
            if isinstance(axis, Choice):
                value = self._choices[path][value]
            elif isinstance(value, float):
                low, high = axis.extremes()
                value = min(max(float(f"{value:.{DIGITS}g}"), low), high)
            found.append(Setting(path, value, axis_origin(f"{key}, of a search")))
        return tuple(found)

    def distributions(self) -> dict[str, Any]:
        """The axes in Optuna's words."""
        from optuna.distributions import (
            CategoricalDistribution,
            FloatDistribution,
            IntDistribution,
        )

        found: dict[str, Any] = {}
        for path, axis in self.axes.items():
            key = ".".join(path)
            if isinstance(axis, Choice):
                found[key] = CategoricalDistribution(tuple(self._choices[path]))
                continue
            low, high = axis.extremes()
            if isinstance(axis, Integer):
                found[key] = IntDistribution(low, high, step=axis.step)
            else:
                found[key] = FloatDistribution(low, high, log=isinstance(axis, LogUniform))
        return found


def sampler_of(kind: str, seed: int, number: int) -> Any:
    """What proposes one trial.

    It is seeded for each trial anew, so that a search that goes on proposes what it would have
    proposed had it not been interrupted.

    Arguments:
        kind: `tpe` or `random`.
    """
    from optuna.samplers import RandomSampler, TPESampler

    digest = hashlib.sha256(f"{seed}/{number}".encode()).digest()
    start = int.from_bytes(digest[:4], "big")
    return TPESampler(seed=start) if kind == "tpe" else RandomSampler(seed=start)


def corner(axes: Axes) -> Point:
    """The point at the first limit of every axis."""
    return tuple(
        Setting(path, axis.extremes()[0], axis_origin(".".join(path)))
        for path, axis in axes.items()
    )


def corners(axes: Axes) -> list[Point]:
    """Points that reach every limit and every choice of every axis, one axis at a time.

    Returns:
        the points, which show what is wrong with an axis before anything runs.
    """
    base = corner(axes)
    found = [base]
    for index, (path, axis) in enumerate(axes.items()):
        for value in axis.extremes()[1:]:
            moved = Setting(path, value, base[index].origin)
            found.append((*base[:index], moved, *base[index + 1 :]))
    return found


def _choices(axis: Distribution) -> dict[str, object]:
    """Choices by a text that Optuna can store."""
    if not isinstance(axis, Choice):
        return {}
    return {value_text(raw.value): raw.value for raw in axis.values}
