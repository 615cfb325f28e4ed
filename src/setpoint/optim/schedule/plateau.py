"""A factor that falls when a metric has stopped getting better."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Any

from .place import Place


class PlateauCurve:
    """A warm-up times a factor that evaluations lower.

    The rule is that of `torch.optim.lr_scheduler.ReduceLROnPlateau` with a relative threshold:
    a value is a gain if it is below best * (1 - threshold), or above best * (1 + threshold) where
    more is better. After more than `patience` evaluations in a row without a gain, the factor
    becomes max(floor, factor * level), and the next `cooldown` evaluations are not counted.

    Arguments:
        monitor: the metric; a state of another one gives its level only.
        direction: whether less (`"min"`) or more (`"max"`) of it is better.
        threshold: the least relative change that is a gain.
        cooldown: evaluations after a fall that are not counted.
        judged_on: what it is measured on and how often; a state of another likewise.
    """

    def __init__(
        self,
        *,
        monitor: str,
        direction: str,
        factor: float,
        patience: int,
        threshold: float,
        cooldown: int,
        floor: float,
        warmup: Callable[[Place | float], float] = lambda _: 1.0,
        judged_on: str | None = None,
    ) -> None:
        self.monitor, self.direction, self.judged_on = monitor, direction, judged_on
        self.factor, self.patience, self.threshold = factor, patience, threshold
        self.cooldown, self.floor = cooldown, floor
        self.warmup = warmup
        self.level = 1.0
        self.best: float | None = None
        self.waited = 0
        self.cooling = 0

    def __call__(self, at: Place | float) -> float:
        """Compute the factor: that of the warm-up times the level."""
        return self.warmup(at) * self.level

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
        if self.waited > self.patience:
            self.level = max(self.floor, self.level * self.factor)
            self.cooling, self.waited = self.cooldown, 0

    def _is_gain(self, value: float) -> bool:
        if self.direction == "max":
            best = -inf if self.best is None else self.best
            return value > best * (1.0 + self.threshold)
        best = inf if self.best is None else self.best
        return value < best * (1.0 - self.threshold)

    def state_dict(self) -> dict[str, Any]:
        """What evaluations have come to."""
        return {
            "monitor": self.monitor,
            "judged_on": self.judged_on,
            "level": self.level,
            "best": self.best,
            "waited": self.waited,
            "cooling": self.cooling,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken; values of another metric or text are forgotten."""
        self.level = state["level"]
        of = state["monitor"], state.get("judged_on", self.judged_on)
        if of == (self.monitor, self.judged_on):
            self.best, self.waited, self.cooling = state["best"], state["waited"], state["cooling"]
