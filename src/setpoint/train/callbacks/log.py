"""Writes a row of metrics, and shows it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from setpoint.model.moe.routing import expert_metrics
from setpoint.track.console import now
from setpoint.track.progress import Progress, Reading
from setpoint.track.trackers import Trackers
from setpoint.train.step.bad_steps import skipped_metrics
from setpoint.train.step.loop import Callback, Phase
from setpoint.train.step.loss_mean import LossMean
from setpoint.train.step.position import is_due, share_done

if TYPE_CHECKING:
    from setpoint.train.step.loop import Loop, StepResult
    from setpoint.train.step.position import Position

SKIPPED = "skipped_steps"
# What depends on the machine and the hour; everything else in a row is exact under resume.
TIMING = ("time", "seconds", "tokens_per_second", "data_wait", "mfu", "evaluation_seconds")


class LogCallback(Callback):
    """Logs every so often, and after the last step.

    Arguments:
        flops_per_token: operations that training on a token needs; None where unknown.
        peak_flops: operations per second that the device can do; None where unknown.
        mean: of the losses since the last row.
    """

    phase = Phase.OBSERVE

    def __init__(
        self,
        trackers: Trackers,
        progress: Progress,
        flops_per_token: float | None = None,
        peak_flops: float | None = None,
        mean: LossMean | None = None,
    ) -> None:
        self.trackers = trackers
        self.progress = progress
        self.flops_per_token = flops_per_token
        self.peak_flops = peak_flops
        self.mean = mean or LossMean()
        self.logged: Position | None = None
        # Seconds of the loop when the last row was written: in steps, and waiting for data.
        self.stepping = self.waited = 0.0
        self.pending: StepResult | None = None

    def start(self, loop: Loop) -> None:
        """Measure speed from where the session begins."""
        self.logged = loop.position
        self.stepping, self.waited = loop.stepping, loop.waited

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Write a row if one is due; the bar moves at each step."""
        at, every = loop.position, loop.job.tracking.every
        if math.isfinite(result.loss):  # a step that was skipped may have none
            self.mean.add(result.loss, result.by_source)
        due = is_due(every, loop.before, at, loop.last) or (loop.last and every.unit != "never")
        self.pending = None if due or every.unit == "never" else result
        if due:
            self.write(loop, result)
        else:
            self.progress.advance(at.step)

    def rewound(self, loop: Loop) -> None:
        """Measure speed from there."""
        self.start(loop)
        self.pending = None

    def finish(self, loop: Loop) -> None:
        """Write the row of the last step where the loop was ended after it."""
        if loop.ended and self.pending is not None:
            self.write(loop, self.pending)

    def write(self, loop: Loop, result: StepResult) -> None:
        """Write a row and show it."""
        at = loop.position
        row = self.row(at, result, _metrics(loop) | self._by_source(loop), self._waited(loop))
        self.start(loop)
        self.trackers.write(row)
        done = share_done(loop.job.duration, at)
        self.progress.show(
            Reading(
                step=at.step,
                loss=row["mean_loss"],
                tokens_per_second=row["tokens_per_second"],
                # Of streamed data it is not known how much of an epoch is done.
                seconds_left=at.seconds * (1 - done) / done if done else None,
                mfu=row["mfu"],
                fraction=done,
            )
        )

    def _waited(self, loop: Loop) -> float | None:
        """The share of the time of the steps since the last row."""
        seconds = loop.stepping - self.stepping
        return (loop.waited - self.waited) / seconds if seconds > 0 else None

    def _by_source(self, loop: Loop) -> dict[str, Any]:
        """What came of each source since the last row, where there are several."""
        names, (sequences, targets, nats) = loop.parts.train.sources, self.mean.by_source
        means = [a / b if b else None for a, b in zip(nats, targets, strict=False)]
        figures = {"sequences": sequences, "target_tokens": targets, "cross_entropy": means}
        return {
            f"{figure}_{name}": value
            for figure, values in figures.items()
            if len(values) == len(names)
            for name, value in zip(names, values, strict=True)
        }

    def row(
        self,
        at: Position,
        result: StepResult,
        more: Mapping[str, Any] | None = None,
        data_wait: float | None = None,
    ) -> dict[str, Any]:
        """The metrics of a step, with more of them.

        Arguments:
            data_wait: share of the time of the steps that this rank waited for data.

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
            "mean_loss": self.mean.take(),
            "cross_entropy": result.nats,
            "grad_norm": result.grad_norm,
            "lr": result.lr,
            "seconds": at.seconds,
            "tokens_per_second": speed,
            "data_wait": data_wait,
            "mfu": mfu,
            **(more or {}),
        }


def _metrics(loop: Loop) -> dict[str, Any]:
    """What belongs to the rows of some models and formats only: experts, the scale of the loss."""
    experts = {} if loop.routing is None else expert_metrics(loop.routing)
    scaler = loop.parts.scaler.metrics()
    skipped = skipped_metrics(loop.parts.non_finite, loop.parts.spikes)
    found: dict[str, Any] = {**experts, **scaler, **skipped}
    if scaler and skipped:  # gradients that overflow in fp16, and steps that are passed over
        found[SKIPPED] = scaler[SKIPPED] + skipped[SKIPPED]
    return found
