"""Writes a row of metrics, and shows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from setpoint.track.console import now
from setpoint.track.progress import Progress, Reading
from setpoint.train.callback import Callback
from setpoint.train.step.position import is_due, share_done

if TYPE_CHECKING:
    from setpoint.train.step.loop import Loop, StepResult
    from setpoint.train.step.position import Position

# What depends on the machine and the hour; everything else in a row is exact under resume.
TIMING = ("time", "seconds", "tokens_per_second", "mfu")


STATE = "log"  # its name in the state of checkpoints


class Tracker(Protocol):
    """Receives rows of metrics.

    It may also have `close()`, called when a session ends, and `rewind(step)`, called where a
    session goes on at a step and rows after it come again.
    """

    def write(self, row: dict[str, Any]) -> None:
        """Take one row."""
        ...


class LogCallback(Callback):
    """Logs every so often, and after the last update.

    Arguments:
        flops_per_token: operations that training on a token needs; None where unknown.
        peak_flops: operations per second that the device can do; None where unknown.
        more: gives what else belongs to a row, by name; called when one is written.
    """

    def __init__(
        self,
        trackers: Sequence[Tracker],
        progress: Progress,
        flops_per_token: float | None = None,
        peak_flops: float | None = None,
        more: Callable[[], dict[str, Any]] = dict,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self.trackers = trackers
        self.progress = progress
        self.flops_per_token = flops_per_token
        self.peak_flops = peak_flops
        self.more = more
        self.logged: Position | None = None
        self.pending: StepResult | None = None
        # Of the losses since the last row, so that a resumed run writes the same mean.
        known = (state or {}).get(STATE, {"sum": 0.0, "updates": 0})
        self.sum, self.updates = float(known["sum"]), int(known["updates"])

    def to_state(self) -> dict[str, float | int]:
        """What a checkpoint keeps."""
        return {"sum": self.sum, "updates": self.updates}

    def start(self, loop: Loop) -> None:
        """Measure speed from where the session begins."""
        self.logged = loop.position

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Write a row if one is due; the bar moves at each update."""
        at, every = loop.position, loop.job.tracking.every
        self.sum += result.loss
        self.updates += 1
        due = is_due(every, loop.before, at, loop.last) or (loop.last and every.unit != "never")
        self.pending = None if due or every.unit == "never" else result
        if due:
            self.write(loop, result)
        else:
            self.progress.advance(at.step)

    def finish(self, loop: Loop) -> None:
        """Write the row of the last update where the loop was ended after it."""
        if loop.ended and self.pending is not None:
            self.write(loop, self.pending)

    def write(self, loop: Loop, result: StepResult) -> None:
        """Write a row and show it."""
        at = loop.position
        row = self.row(at, result)
        self.logged, self.sum, self.updates = at, 0.0, 0
        for tracker in self.trackers:
            tracker.write(row)
        done = share_done(loop.job.duration, at)
        self.progress.show(
            Reading(
                step=at.step,
                loss=row["mean_loss"],
                tokens_per_second=row["tokens_per_second"],
                seconds_left=at.seconds * (1 - done) / done,
                mfu=row["mfu"],
                fraction=done,
            )
        )

    def row(self, at: Position, result: StepResult) -> dict[str, Any]:
        """The metrics of an update.

        Returns:
            names and numbers; those in `TIMING` depend on the machine.
        """
        assert self.logged is not None
        seconds = at.seconds - self.logged.seconds
        speed = (at.tokens - self.logged.tokens) / seconds if seconds > 0 else 0.0
        mfu = None
        if self.flops_per_token is not None and self.peak_flops is not None:
            mfu = speed * self.flops_per_token / self.peak_flops
        return {
            "kind": "train",
            "time": now(),
            "step": at.step,
            "tokens": at.tokens,
            "epoch": at.epochs,
            "loss": result.loss,
            "mean_loss": self.sum / self.updates,
            "cross_entropy": result.nats,
            "grad_norm": result.grad_norm,
            "lr": result.lr,
            "seconds": at.seconds,
            "tokens_per_second": speed,
            "mfu": mfu,
            **self.more(),
        }
