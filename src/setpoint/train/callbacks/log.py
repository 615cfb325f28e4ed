"""Callbacks that report: rows of metrics, skipped steps, memory, and the changed record."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from setpoint.memory.usage import measure, process_peak, reset_peak
from setpoint.model.moe.losses import expert_metrics
from setpoint.shapes.batch import ONE_SOURCE, BySource
from setpoint.track.console import now
from setpoint.track.progress import Progress, Reading
from setpoint.track.trackers import Trackers
from setpoint.train.loop import Callback, Phase
from setpoint.train.position import share_done
from setpoint.train.step_clock import PARTS
from setpoint.train.verdict import skipped_metrics

if TYPE_CHECKING:
    from setpoint.parallel.world import World
    from setpoint.shapes.logged import MetricLog
    from setpoint.shapes.outcome import Routing
    from setpoint.track.jsonl import EventLog
    from setpoint.train.loop import Loop
    from setpoint.train.position import Position
    from setpoint.train.verdict import StepResult


_N = TypeVar("_N", int, float)
SKIPPED = "skipped_steps"
SECONDS, SHARES = (
    {part: f"{start}_{part}" for part in (*PARTS, "other")} for start in ("seconds", "share")
)
"""The columns of the parts of steps."""
# What depends on the machine and the hour; everything else in a row is exact under resume.
TIMING = ("time", "seconds", "tokens_per_second", "data_wait", "mfu", "evaluation_seconds",
          "peak_rss", "peak_gpu_memory", *SECONDS.values(), *SHARES.values())  # fmt: skip


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
        return self._experts if self.routing is None else expert_metrics(self.routing)

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


class LogCallback(Callback):
    """Logs periodically, and after the last step.

    Arguments:
        flops_per_token: FLOPs per trained token; None if unknown.
        peak_flops: peak FLOPS of the device; None if unknown.
        mean: of the losses since the last row.
    """

    phase = Phase.LOG

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
        # Seconds of the parts of steps by then, and that time by the clock.
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
        """Write a row if due; advance the bar."""
        at, every = loop.position, loop.job.tracking.every
        if math.isfinite(result.loss):  # a step that was skipped may have none
            self.mean.add(result.loss, result.by_source)
        if loop.routing is not None:
            self.mean.routing = loop.routing
        due = self.needs_result(loop)
        written = due or (loop.is_over and every.unit != "never")
        self.pending = None if written or every.unit == "never" else result
        if written:
            self.write(loop, result, due)
        elif self.progress.moves:
            self.progress.advance(at.step)

    def rewound(self, loop: Loop) -> None:
        """Measure speed from the rollback."""
        self.start(loop)
        self.pending = None

    def finish(self, loop: Loop) -> None:
        """Write the row of the last step, if the loop was ended after it."""
        if loop.end_reason and self.pending is not None:
            self.write(loop, self.pending, due=False)

    def write(self, loop: Loop, result: StepResult, due: bool) -> None:
        """Write a row and show it.

        Arguments:
            due: by the logging interval, rather than the end of the run.
        """
        at = loop.position
        more = self.mean.experts | _metrics(loop) | _rates(loop, result)
        more |= self._by_source(loop) | self._times(loop)
        if self.mean.ema is not None:
            more["loss_ema"] = self.mean.ema
        if loop.engine.norms is not None:
            more |= loop.engine.norms.columns()
        meet(loop.metrics, loop.components.world)
        more |= loop.metrics.take()
        row = self.row(at, result, more, self._waited(loop), due)
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
        """Share of step time spent waiting for data since the last row."""
        seconds = loop.stepping - self.stepping
        return (loop.waited - self.waited) / seconds if seconds > 0 else None

    def _times(self, loop: Loop) -> dict[str, float]:
        """Seconds and shares of the parts of steps, and of other time, since the last row."""
        if not loop.times.is_on:
            return {}
        now, whole = loop.times.read(), time.perf_counter() - self.began
        device = loop.components.device.type != "cpu" and not loop.times.on_device
        idle = {"communication": loop.ranks.is_shared, "device": device}
        spent = {
            part: now[part] - before for part, before in self.parts.items() if idle.get(part, True)
        }
        spent["other"] = max(0.0, whole - sum(spent.values()))
        return {SECONDS[part]: seconds for part, seconds in spent.items()} | {
            SHARES[part]: seconds / whole for part, seconds in spent.items()
        }

    def _by_source(self, loop: Loop) -> dict[str, Any]:
        """Columns by source since the last row; empty for a single source."""
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
        at: Position,
        result: StepResult,
        more: Mapping[str, Any] | None = None,
        data_wait: float | None = None,
        due: bool = True,
    ) -> dict[str, Any]:
        """The metrics of a step, with additional ones.

        Arguments:
            data_wait: share of step time that this rank waited for data.
            due: see `LossMean.take`.

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
            "mean_loss": self.mean.take(due),
            "cross_entropy": result.cross_entropy,
            "grad_norm": result.grad_norm,
            "lr": result.lr,
            "seconds": at.seconds,
            "tokens_per_second": speed,
            "data_wait": data_wait,
            "mfu": mfu,
            **(more or {}),
        }


def meet(metrics: MetricLog, world: World) -> None:
    """Merge the logged metrics of all ranks on the main rank, and reset the others.

    All ranks call it at the same point; they communicate only if one of them has logged.
    """
    metrics.settle()
    if world.size == 1 or not (metrics.meets or metrics.always):
        return
    # Ranks of the axis `tensor` compute the same.
    alike = tuple(at for axis, at in world.coordinates.items() if axis != "tensor")
    metrics.merge(world.all_of((alike, metrics.totals)))
    metrics.meets = False
    if not world.is_main:
        metrics.take()


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
    """Columns of some dtypes and policies: loss scale, skipped steps."""
    scaler = loop.components.scaler.metrics()
    skipped = skipped_metrics(loop.components.non_finite, loop.components.spikes)
    columns: dict[str, Any] = {**scaler, **skipped}
    if scaler and skipped:  # gradients that overflow in fp16, and steps that are passed over
        columns[SKIPPED] = scaler[SKIPPED] + skipped[SKIPPED]
    return columns


class SkippedStepsCallback(Callback):
    """Writes an event and a line for each skipped step."""

    phase = Phase.OBSERVE

    def __init__(self, events: EventLog, progress: Progress) -> None:
        self.events, self.progress = events, progress

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

    A session that stops before it leaves the record unchanged.
    """

    phase = Phase.STEP

    def __init__(self, change: Callable[[], None]) -> None:
        self.change = change

    def after_first_step(self, loop: Loop, result: StepResult) -> None:
        """Write."""
        self.change()


class MemoryCallback(Callback):
    """Reports memory by part once, after the first step of a session."""

    phase = Phase.STEP

    def __init__(self, events: EventLog, progress: Progress) -> None:
        self.events, self.progress = events, progress

    def start(self, loop: Loop) -> None:
        """Reset the memory peak."""
        reset_peak(loop.components.device)

    def after_first_step(self, loop: Loop, result: StepResult) -> None:
        """Report."""
        components = loop.components
        held = dict(components.weights.named_parameters())
        known = components.replicas.local_bytes()
        report = measure(components.model, held, components.optimizer, components.device, known)
        self.events.write("memory", step=loop.position.step, **report._asdict())
        self.progress.note(report.line())
