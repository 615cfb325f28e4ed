"""Mean of the training losses since the last row of metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from setpoint.shapes.batch import ONE_SOURCE, BySource

if TYPE_CHECKING:
    from setpoint.shapes.outcome import Routing

_N = TypeVar("_N", int, float)


class LossMean:
    """Mean loss since the last row, sums by source, and the moving average of all losses.

    Checkpoints have the sums, so that a resumed run writes the same rows.

    Arguments:
        smoothing: weight of the past in the moving average of losses; None: there is none.
    """

    def __init__(self, smoothing: float | None = None) -> None:
        self.sum, self.steps = 0.0, 0
        # Of the last whole logging interval; and the mean of the last row of this session.
        self.before: tuple[float, int] = (0.0, 0)
        self.last: float | None = None
        self.by_source = BySource()
        # Choice of experts in the last step that was taken; and the columns of one by an earlier
        # session.
        self.routing: Routing | None = None
        self._experts: dict[str, float] = {}
        self.smoothing = smoothing
        # The average as if it had begun at 0, and how far it is from having forgotten that.
        self._average, self._weight = 0.0, 0.0

    def add(self, loss: float, by_source: BySource = ONE_SOURCE) -> None:
        """Take one more step."""
        self.sum += loss
        self.steps += 1
        if self.smoothing is not None:
            self._average = self.smoothing * self._average + (1 - self.smoothing) * loss
            self._weight = self.smoothing * self._weight + 1 - self.smoothing
        before = self.by_source
        if self.steps == 1 or len(before.sequences) != len(by_source.sequences):
            self.by_source = by_source  # also where a resume accepted other sources
            return
        if by_source is ONE_SOURCE:
            return
        self.by_source = BySource(
            _sums(before.sequences, by_source.sequences),
            _sums(before.targets, by_source.targets),
            _sums(before.nats, by_source.nats),
        )

    @property
    def ema(self) -> float | None:
        """The moving average, bias-corrected (Kingma and Ba, 2015, section 3).

        NaN before the first finite loss; None without smoothing.
        """
        if self.smoothing is None:
            return None
        return self._average / self._weight if self._weight else math.nan

    @property
    def experts(self) -> dict[str, float]:
        """Columns of expert metrics; synchronizes with the device."""
        return self._experts if self.routing is None else self.routing.metrics()

    def take(self, due: bool = True) -> float:
        """Return the mean, NaN without a finite loss, and reset.

        Arguments:
            due: a logging interval ends with this step; else the run ends, and the mean includes
                the last complete interval.
        """
        total, steps = self.sum, self.steps
        if due:
            self.before = total, steps
        else:
            total, steps = total + self.before[0], steps + self.before[1]
        self.sum, self.steps, self.by_source = 0.0, 0, BySource()
        self.last = total / steps if steps else math.nan
        return self.last

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint."""
        names = (("by_source", "sequences"), ("targets", "targets"), ("nats", "nats"))
        of_sources = {key: list(getattr(self.by_source, name)) for key, name in names}
        several = {key: numbers for key, numbers in of_sources.items() if numbers}
        smooth = {} if self.smoothing is None else {"ema": [self._average, self._weight]}
        before = {"before": [*self.before]} if self.before[1] else {}
        experts = {"experts": known} if (known := self.experts) else {}
        return {"sum": self.sum, "steps": self.steps, **before, **several, **smooth, **experts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the sums, or reset them for an empty state."""
        self.sum, self.steps = float(state.get("sum", 0.0)), int(state.get("steps", 0))
        self.routing, self._experts = None, dict(state.get("experts", {}))
        total, steps = state.get("before", (0.0, 0))
        self.before = float(total), int(steps)
        keys = ("by_source", "targets", "nats")
        self.by_source = BySource(*(tuple(state.get(key, ())) for key in keys))
        self._average, self._weight = map(float, state.get("ema", (0.0, 0.0)))


def _sums(before: tuple[_N, ...], more: tuple[_N, ...]) -> tuple[_N, ...]:
    """Source by source."""
    return tuple(a + b for a, b in zip(before, more, strict=False))
