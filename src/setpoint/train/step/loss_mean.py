"""What has been added up since the last row of metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from setpoint.model.moe.routing import expert_metrics
from setpoint.shapes.batch import ONE_SOURCE, BySource

if TYPE_CHECKING:
    from setpoint.shapes.outcome import Routing

_N = TypeVar("_N", int, float)


class LossMean:
    """Adds up losses, and what is known of each source; and smooths the losses of all steps.

    A checkpoint keeps the sums, so that a resumed run writes the same rows.

    Arguments:
        smoothing: weight of the past in the moving average of losses; None: there is none.
    """

    def __init__(self, smoothing: float | None = None) -> None:
        self.sum, self.steps = 0.0, 0
        # Of the last whole logging interval; and what the last row of this session has, over how
        # many steps.
        self.before: tuple[float, int] = (0.0, 0)
        self.last: float | None = None
        self.last_steps = 0
        self.by_source = BySource()
        # How experts were chosen in the last step that was taken; and by a session before, as the
        # figures of a row.
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
        self.by_source = BySource(
            _sums(before.sequences, by_source.sequences),
            _sums(before.targets, by_source.targets),
            _sums(before.nats, by_source.nats),
        )

    @property
    def ema(self) -> float | None:
        """The moving average, without the bias of its beginning (Kingma and Ba, 2015, section 3).

        NaN before the first finite loss; None where there is none.
        """
        if self.smoothing is None:
            return None
        return self._average / self._weight if self._weight else math.nan

    @property
    def experts(self) -> dict[str, float]:
        """The figures of experts; waits for the device."""
        return self._experts if self.routing is None else expert_metrics(self.routing)

    def take(self, due: bool = True) -> float:
        """Return the mean, NaN where no step had a finite loss, and begin anew.

        Arguments:
            due: whether a logging interval ends here; else a run does, maybe after one step of it,
                and the mean is over the interval before as well.
        """
        total, steps = self.sum, self.steps
        if due:
            self.before = total, steps
        else:
            total, steps = total + self.before[0], steps + self.before[1]
        self.sum, self.steps, self.by_source = 0.0, 0, BySource()
        self.last, self.last_steps = total / steps if steps else math.nan, steps
        return self.last

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        names = (("by_source", "sequences"), ("targets", "targets"), ("nats", "nats"))
        of_sources = {key: list(getattr(self.by_source, name)) for key, name in names}
        several = {key: numbers for key, numbers in of_sources.items() if numbers}
        smooth = {} if self.smoothing is None else {"ema": [self._average, self._weight]}
        before = {"before": [*self.before]} if self.before[1] else {}
        experts = {"experts": known} if (known := self.experts) else {}
        return {"sum": self.sum, "updates": self.steps, **before, **several, **smooth, **experts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a sum; checkpoints of older versions have none."""
        self.sum, self.steps = float(state.get("sum", 0.0)), int(state.get("updates", 0))
        self.routing, self._experts = None, dict(state.get("experts", {}))
        total, steps = state.get("before", (0.0, 0))
        self.before = float(total), int(steps)
        keys = ("by_source", "targets", "nats")
        self.by_source = BySource(*(tuple(state.get(key, ())) for key in keys))
        self._average, self._weight = map(float, state.get("ema", (0.0, 0.0)))


def _sums(before: tuple[_N, ...], more: tuple[_N, ...]) -> tuple[_N, ...]:
    """Source by source; nothing where one has none, as states of older versions."""
    return tuple(a + b for a, b in zip(before, more, strict=False))
