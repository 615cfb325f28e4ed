"""Position in a run: due periods, end of training, learning rate and freezing."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from setpoint.optim.curves import PlateauCurve, ScheduleTime
from setpoint.units import Duration, Period

if TYPE_CHECKING:
    from setpoint.adapter.config import Merge
    from setpoint.optim.config import FrozenSpan
    from setpoint.optim.schedule import ScheduleConfig
    from setpoint.shapes.scoring import Score
    from setpoint.train.config import BatchConfig

UNITS = ("steps", "tokens", "epochs", "seconds")


@dataclass(frozen=True, slots=True)
class Position:
    """Progress of a run: steps, tokens, epochs and seconds.

    Arguments:
        tokens: tokens read by the model in training, without padding.
        epochs: passes over the training data, fractional during a pass.
        seconds: time spent training, over all sessions of the run.
    """

    step: int = 0
    tokens: int = 0
    epochs: float = 0.0
    seconds: float = 0.0

    def in_unit(self, unit: str) -> float:
        """The distance covered, in one of the units of periods and durations.

        Arguments:
            unit: `"steps"`, `"tokens"`, `"epochs"` or `"seconds"`.
        """
        return {
            "steps": self.step,
            "tokens": self.tokens,
            "epochs": self.epochs,
            "seconds": self.seconds,
        }[unit]


def is_over(duration: Duration, position: Position) -> bool:
    """True if one of the limits has been reached."""
    return any(position.in_unit(limit.unit) >= limit.count for limit in duration.limits)


def share_done(duration: Duration, position: Position, batch: BatchConfig | None = None) -> float:
    """Completed fraction of the run, by the nearest limit.

    Arguments:
        batch: counts steps by their sequences, which differ in a batch size ramp; None: equally.
    """
    shares = {limit.unit: position.in_unit(limit.unit) / limit.count for limit in duration.limits}
    if batch is not None and (steps := duration.in_unit("steps")):
        shares["steps"] = batch.sequences_before(position.step) / batch.sequences_before(int(steps))
    return min(1.0, max(shares.values()))


def is_due(period: Period, before: Position, now: Position, last: bool) -> bool:
    """True if a multiple of the period lies in the last step.

    Returns:
        True if it is due; `"last_step"` is due once, at the end, and `"never"` is never due.
    """
    if period.unit == "never":
        return False
    if period.unit == "last_step":
        return last
    # Counting multiples, not differences, keeps a resumed run at the same steps.
    done, earlier = now.in_unit(period.unit), before.in_unit(period.unit)
    return period.multiples_in(done) > period.multiples_in(earlier)


class LearningRate:
    """Learning-rate factor of the next step, from the position of the run.

    With a duration in tokens, the position in steps is the number of full batches that the trained
    tokens amount to, possibly fractional. With epochs, it is the position at the start of the
    current epoch. The time that a step will take is unknown, so it counts as 0.

    Arguments:
        epoch_rows: sequences in an epoch; None: unknown.
        phases: first step and factor of each phase of the data, in increasing order of steps.
        merge: merges of an adapter, after which the rate may rise again.
    """

    def __init__(
        self,
        section: ScheduleConfig,
        batch: BatchConfig,
        epoch_rows: int | None = None,
        phases: Sequence[tuple[int, float]] = (),
        merge: Merge | None = None,
    ) -> None:
        self.curve: Any = section.build()
        self.by = section.moved_by
        self.batch, self.epoch_rows = batch, epoch_rows
        self.phases = tuple(phases)
        self.merge = merge
        # The current epoch and the position of its first step; none before the first.
        self.epoch, self.began = -1, Position()

    def factor(self, position: Position) -> float:
        """Compute the factor of the step that begins at a position.

        Arguments:
            position: not before the position of the previous call.
        """
        factor = self.curve(self._place(position))
        if self.merge is not None:
            factor *= self.merge.rate_factor(position.step)
        started = [extra for first, extra in self.phases if first <= position.step]
        return factor * started[-1] if started else factor

    def _place(self, position: Position) -> ScheduleTime:
        if self.by == "epoch":
            epoch = math.floor(position.epochs)
            if epoch != self.epoch:
                self.epoch, self.began = epoch, position
            position = self.began
        begin: dict[str, float] = {unit: position.in_unit(unit) for unit in UNITS}
        size, length = self.batch.size_at(position.step), self.batch.sequence_length
        if self.by == "tokens":
            begin["steps"] = self.batch.steps_for(position.tokens / length)
        epochs = size / self.epoch_rows if self.epoch_rows else 0.0
        return ScheduleTime(begin, {"steps": 1, "tokens": size * length, "epochs": epochs})

    def observe(self, scores: Mapping[str, Score]) -> None:
        """Record the scores of an evaluation that was due; only a plateau uses them."""
        if isinstance(self.curve, PlateauCurve):
            data, _, metric = self.curve.config.monitor.rpartition(".")
            self.curve.observe(scores[data].metric(metric))

    def state_dict(self) -> dict[str, Any]:
        """State of the schedule for a checkpoint, in addition to the position.

        Returns:
            plain values; empty if there are none.
        """
        state: dict[str, Any] = {}
        if self.by == "epoch":
            state["epoch"] = {"number": self.epoch, "began": asdict(self.began)}
        if isinstance(self.curve, PlateauCurve):
            state["plateau"] = self.curve.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state.

        Arguments:
            state: result of `state_dict`, possibly from another schedule; unused values are
                ignored.
        """
        if self.by == "epoch" and "epoch" in state:
            self.began = Position(**state["epoch"]["began"])
            self.epoch = state["epoch"]["number"]
        if isinstance(self.curve, PlateauCurve) and "plateau" in state:
            self.curve.load_state_dict(state["plateau"])


class Freezing:
    """Parameters frozen at a position.

    Their gradients are computed, but dropped before the optimizer sees them, so that it changes
    neither the parameters nor their state. Structures that engines built over the parameters thus
    stay valid.

    Arguments:
        names: the names of all parameters that are trained at any time.
    """

    def __init__(self, spans: Sequence[FrozenSpan], names: Iterable[str]) -> None:
        candidates = list(names) if spans else []
        self.spans = [
            (span, frozenset(name for name in candidates if re.search(span.pattern, name)))
            for span in spans
        ]

    def now(self, position: Position) -> frozenset[str]:
        """Names of the parameters that are frozen in the step that begins at a position."""
        frozen = (names for span, names in self.spans if span.holds(position.in_unit))
        return frozenset().union(*frozen)
