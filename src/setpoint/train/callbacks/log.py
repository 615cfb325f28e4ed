"""Metric rows: mean loss, MFU and speed; notes on skipped steps, memory and the record."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from setpoint.memory.usage import measure, process_peak, reset_peak
from setpoint.track.console import now
from setpoint.track.progress import Reading
from setpoint.train.loop import Callback, Phase
from setpoint.train.position import share_done
from setpoint.train.row_metrics import meet
from setpoint.train.run_record import change_record
from setpoint.train.step_times import PARTS
from setpoint.train.verdict import skipped_metrics

if TYPE_CHECKING:
    from setpoint.train.loop import Loop
    from setpoint.train.position import Position
    from setpoint.train.session import Run
    from setpoint.train.verdict import StepResult


SKIPPED = "skipped_steps"
SECONDS, SHARES = (
    {part: f"{start}_{part}" for part in (*PARTS, "other")} for start in ("seconds", "share")
)
"""The columns of the parts of steps."""
# Columns that depend on the machine and the time; all others are exact under resume.
TIMING = ("time", "seconds", "tokens_per_second", "data_wait", "mfu", "evaluation_seconds",
          "peak_rss", "peak_gpu_memory", *SECONDS.values(), *SHARES.values())  # fmt: skip


class LogCallback(Callback):
    """Logs periodically, and after the last step."""

    phase = Phase.LOG

    def __init__(self, run: Run) -> None:
        self.trackers, self.progress, self.mean = run.trackers, run.progress, run.mean
        self.utilization = run.utilization
        self.logged: Position | None = None
        # Seconds of the loop at the last row: in steps, and waiting for data.
        self.stepping = self.waited = 0.0
        # Seconds of the parts of steps at that time, and the time by the clock.
        self.parts = dict.fromkeys(PARTS, 0.0)
        self.began = 0.0
        self.pending: StepResult | None = None

    def start(self, loop: Loop) -> None:
        """Measure speed from the start of the session."""
        self.logged = loop.position
        self.stepping, self.waited = loop.stepping, loop.waited
        self.parts, self.began = loop.times.read(), time.perf_counter()

    def needs_result(self, loop: Loop) -> bool:
        """True if a row is due."""
        return loop.is_due(loop.job.tracking.every)

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Write a row if due, and advance the progress bar."""
        position, every = loop.position, loop.job.tracking.every
        if math.isfinite(result.loss):  # a skipped step may have no loss
            self.mean.add(result.loss, result.by_source)
        if result.routing is not None:
            self.mean.routing = result.routing
        due = self.needs_result(loop)
        written = due or (loop.is_over and every.unit != "never")
        self.pending = None if written or every.unit == "never" else result
        if written:
            self.write(loop, result, due)
        elif self.progress.moves:
            self.progress.advance(position.step)

    def rewound(self, loop: Loop) -> None:
        """Measure speed from the rollback on."""
        self.start(loop)
        self.pending = None

    def finish(self, loop: Loop) -> None:
        """Write the row of the last step, if the loop was ended after that step."""
        if loop.end_reason and self.pending is not None:
            self.write(loop, self.pending, due=False)

    def write(self, loop: Loop, result: StepResult, due: bool) -> None:
        """Write a row and display it.

        Arguments:
            due: whether the logging interval requires it, rather than the end of the run.
        """
        position = loop.position
        more = self.mean.experts | _metrics(loop) | _rates(loop, result)
        more |= self._by_source(loop) | self._times(loop)
        if self.mean.ema is not None:
            more["loss_ema"] = self.mean.ema
        if loop.engine.norms is not None:
            more |= loop.engine.norms.columns()
        meet(loop.metrics, loop.components.world)
        more |= loop.metrics.take()
        seconds = loop.stepping - self.stepping
        data_wait = (loop.waited - self.waited) / seconds if seconds > 0 else None
        row = self.row(position, result, more, data_wait, due)
        self.start(loop)
        self.trackers.write(row)
        done = share_done(loop.job.duration, position, loop.job.batch)
        self.progress.show(
            Reading(
                step=position.step,
                loss=row["mean_loss"],
                tokens_per_second=row["tokens_per_second"],
                # With streamed data, the completed share of an epoch is unknown.
                seconds_left=position.seconds * (1 - done) / done if done else None,
                mfu=row["mfu"],
                fraction=done,
            )
        )

    def _times(self, loop: Loop) -> dict[str, float]:
        """Seconds and shares of the parts of steps, and of other time, since the last row."""
        if not loop.times.is_on:
            return {}
        now, total = loop.times.read(), time.perf_counter() - self.began
        device = loop.components.device.type != "cpu" and not loop.times.on_device
        idle = {"communication": loop.sync.is_shared, "device": device}
        spent = {
            part: now[part] - before for part, before in self.parts.items() if idle.get(part, True)
        }
        spent["other"] = max(0.0, total - sum(spent.values()))
        return {SECONDS[part]: seconds for part, seconds in spent.items()} | {
            SHARES[part]: seconds / total for part, seconds in spent.items()
        }

    def _by_source(self, loop: Loop) -> dict[str, Any]:
        """Per-source columns since the last row; empty for a single source."""
        names, (sequences, targets, nats) = loop.components.train_data.sources, self.mean.by_source
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
        position: Position,
        result: StepResult,
        more: Mapping[str, Any] | None = None,
        data_wait: float | None = None,
        due: bool = True,
    ) -> dict[str, Any]:
        """The metrics of a step, with additional ones.

        Arguments:
            data_wait: fraction of the step time during which this rank waited for data.
            due: see `LossMean.take`.

        Returns:
            numbers by name; those in `TIMING` depend on the machine.
        """
        assert self.logged is not None
        seconds = position.seconds - self.logged.seconds
        speed = (position.tokens - self.logged.tokens) / seconds if seconds > 0 else 0.0
        flops, peak = self.utilization.flops_per_token, self.utilization.total_peak
        mfu = None if flops is None or peak is None else speed * flops / peak
        return {
            "kind": "train",
            "time": now(),
            "step": position.step,
            "tokens": position.tokens,
            "epoch": position.epochs,
            "loss": result.loss,
            "mean_loss": self.mean.take(due),
            "cross_entropy": result.cross_entropy,
            "grad_norm": result.grad_norm,
            "lr": result.lr,
            "seconds": position.seconds,
            "tokens_per_second": speed,
            "data_wait": data_wait,
            "mfu": mfu,
            **(more or {}),
        }


def _rates(loop: Loop, result: StepResult) -> dict[str, Any]:
    """Learning rates of groups, if they differ, and peak memory."""
    groups, columns = loop.components.optimizer.param_groups, dict[str, Any]()
    if any("lr_multiplier" in group for group in groups):
        for number, group in enumerate(groups):
            rate = result.lr * group.get("lr_multiplier", 1.0)
            columns[f"lr_{group.get('name', number)}"] = rate
    if loop.job.tracking.metrics.memory:
        columns["peak_rss"] = process_peak()
        if loop.components.device.type == "cuda":
            columns["peak_gpu_memory"] = torch.cuda.max_memory_allocated(loop.components.device)
    return columns


def _metrics(loop: Loop) -> dict[str, Any]:
    """Columns that exist only for some dtypes and policies: loss scale, skipped steps."""
    scaler = loop.components.scaler.metrics()
    skipped = skipped_metrics(loop.components.non_finite, loop.components.spikes)
    columns: dict[str, Any] = {**scaler, **skipped}
    if scaler and skipped:  # gradients that overflow in fp16, and skipped steps
        columns[SKIPPED] = scaler[SKIPPED] + skipped[SKIPPED]
    return columns


class SkippedStepsCallback(Callback):
    """Writes an event and a line for each skipped step."""

    phase = Phase.OBSERVE

    def __init__(self, run: Run) -> None:
        self.events, self.progress = run.events, run.progress

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Report the step if it was skipped."""
        if result.policy is None:
            return
        step, numbers = result.step, {"loss": result.loss, "grad_norm": result.grad_norm}
        count = result.policy.in_a_row
        self.events.write("skip", step=step, **numbers, cause=result.cause, in_a_row=count)
        self.progress.note(f"step {step} is skipped: {result.wrong}")


class RecordCallback(Callback):
    """Updates the record after the first step of a session.

    A session that stops earlier leaves the record unchanged.
    """

    phase = Phase.STEP

    def __init__(self, run: Run) -> None:
        self.run = run

    def after_first_step(self, loop: Loop, result: StepResult) -> None:
        """Write."""
        change_record(self.run)


class MemoryCallback(Callback):
    """Reports memory by part, once, after the first step of a session."""

    phase = Phase.STEP

    def __init__(self, run: Run) -> None:
        self.events, self.progress = run.events, run.progress

    def start(self, loop: Loop) -> None:
        """Reset the memory peak."""
        reset_peak(loop.components.device)

    def after_first_step(self, loop: Loop, result: StepResult) -> None:
        """Report."""
        components = loop.components
        weights = dict(components.weights.named_parameters())
        known = components.replicas.local_bytes()
        report = measure(components.model, weights, components.optimizer, components.device, known)
        self.events.write("memory", step=loop.position.step, **report._asdict())
        self.progress.note(report.line())
