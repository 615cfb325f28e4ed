"""Position in a run: periods that are due, and whether the duration is over."""

from __future__ import annotations

from dataclasses import dataclass

from setpoint.units import Duration, Period

UNITS = ("steps", "tokens", "epochs", "seconds")


@dataclass(frozen=True, slots=True)
class Position:
    """Progress of a run: steps, tokens, epochs and seconds.

    Arguments:
        tokens: that the model has read in training, without padding.
        epochs: passes over the training data, a fraction inside one.
        seconds: time spent training, over all sessions of the run.
    """

    step: int = 0
    tokens: int = 0
    epochs: float = 0.0
    seconds: float = 0.0

    def in_unit(self, unit: str) -> float:
        """The distance in one of the units of periods and durations.

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


def share_done(duration: Duration, position: Position) -> float:
    """Share of the run that is done, by the nearest limit."""
    return min(1.0, max(position.in_unit(limit.unit) / limit.count for limit in duration.limits))


def is_due(period: Period, before: Position, now: Position, last: bool) -> bool:
    """True if a multiple of the period lies in the step that was just taken.

    Returns:
        True if it is due; `"last_step"` is due once, at the end, and `"never"` is not.
    """
    if period.unit == "never":
        return False
    if period.unit == "last_step":
        return last
    # Counting multiples, not differences, makes a resumed run fire where the other one fires.
    done, earlier = now.in_unit(period.unit), before.in_unit(period.unit)
    return period.multiples_in(done) > period.multiples_in(earlier)
