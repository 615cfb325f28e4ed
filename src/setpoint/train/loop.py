"""The training loop, from top to bottom, and the callbacks around it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setpoint.config import RunError, SetpointError, for_error
from setpoint.parallel.determinism import seed_step
from setpoint.parallel.hangs import has_progressed, step_begins, step_has_ended
from setpoint.resilience.signals import Stopped
from setpoint.shapes.batch import BySource
from setpoint.shapes.logged import MetricLog
from setpoint.train.engine import CompleteStep, Engine, PipelineEngine, Rates, complete_retaken
from setpoint.train.position import Freezing, Position, is_due, is_over, share_done
from setpoint.train.row_metrics import NormMetrics
from setpoint.train.step_sync import StepSync, count_over_ranks
from setpoint.train.step_times import StepTimes, measuring_waits
from setpoint.train.verdict import StepResult, Verdict

if TYPE_CHECKING:
    from torch import Tensor

    from setpoint.parallel.world import World
    from setpoint.resilience.signals import StopRequest
    from setpoint.shapes.batch import Count, StepBatch
    from setpoint.shapes.logged import Reduce
    from setpoint.train.build.components import Components
    from setpoint.train.config import Job
    from setpoint.train.evaluation.scores import Scores
    from setpoint.units import Period


class Phase(IntEnum):
    """Order of callbacks that are called after the same step."""

    STEP = 0
    """Belongs to the step itself, such as the end of a profile."""
    OBSERVE = 1
    """Reads what the step did, logs metrics, and writes events."""
    LOG = 2
    """Writes the row of metrics."""
    EVALUATE = 3
    """Evaluates the model."""
    KEEP = 4
    """Saves checkpoints."""
    TIDY = 5
    """Frees memory, and seals written records."""
    LAST = 6
    """After all callbacks of Setpoint."""


TIME_CATEGORIES = {Phase.EVALUATE: "evaluation", Phase.KEEP: "save"}
"""Time category of the callbacks of a phase; see `StepTimes`."""


class Callback:
    """Base class of callbacks; it does nothing, and subclasses override the methods they need.

    Callbacks of one phase run in the order in which they were added. By default a callback runs
    before the metrics row is written and the checkpoint saved, so that both include its effects.
    """

    phase: Phase = Phase.OBSERVE
    min_interval = 0.0
    """Minimum seconds between two calls of `after_step`."""

    def before_open(
        self, job: Job, directory: Path | None, world: World, show: Callable[[str], None]
    ) -> None:
        """Called on all ranks before the run directory is compared with the job and opened.

        Only for callbacks that exist at that point: objects passed to `train`, and operations.

        Arguments:
            directory: the run directory; None for a new run.
            show: prints a line.
        """

    def rehearsed(self, job: Job, directory: Path | None) -> tuple[str, str] | None:
        """Row of `train --dry-run` about `before_open`; nothing is written."""

    def before_build(self, run: Any, ending: ExitStack) -> None:
        """Called on all ranks once the job matches its record, before anything is built.

        For the same callbacks as `before_open`.

        Arguments:
            run: with `job`, `directory`, `world`, and `shown`, which prints lines.
            ending: closed at the end of the session, with the error that ends it.
        """

    def opened(self, run: Any, stack: ExitStack) -> None:
        """Called once the run directory is locked, before the newest checkpoint is loaded.

        Arguments:
            run: with `job`, `directory`, `events`, `progress`, `trackers`, and the `store` of
                checkpoints.
            stack: closed at the end of the session, after everything is recorded.
        """

    def fetch(self, newer_than: int | None) -> bool:
        """Fetch a valid checkpoint if newer local ones are damaged; called on all ranks.

        Arguments:
            newer_than: step of the newest valid checkpoint; None if there is none.

        Returns:
            True if the store now has a newer one.
        """
        return False

    def start(self, loop: Loop) -> None:
        """Called once, before the first step of this session."""

    def needs_result(self, loop: Loop) -> bool:
        """True if `after_step` must be called at the end of the current step.

        The host then waits for the device. Otherwise the next step starts first, and `after_step`
        is called before it changes the weights.
        """
        return not is_ours(self)

    def after_launch(self, loop: Loop) -> None:
        """Called at the end of each step, while the device may still compute it."""

    def before_update(self, loop: Loop) -> None:
        """Called in each step once its gradients are complete, before clipping and the update."""

    def after_first_step(self, loop: Loop, result: StepResult) -> None:
        """Called after the first step of a session, before `after_step` of any callback."""

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Called after each step, or at most every `min_interval` seconds.

        Arguments:
            loop: `previous` and `position` enclose the step; `is_over` after the last one.
        """

    def bad_step(self, loop: Loop, batch: StepBatch, total: Count, result: StepResult) -> None:
        """Called for a non-finite step or a loss spike, before its policy decides.

        Arguments:
            batch: the batch of this rank.
            total: tokens, targets and weight of the batch of all ranks.
            result: its `wrong` is the reason.
        """

    def rewound(self, loop: Loop) -> None:
        """Called after a rollback to a checkpoint, instead of `after_step`.

        Arguments:
            loop: at the position of the checkpoint; later steps are retaken with other data.
        """

    def finish(self, loop: Loop) -> None:
        """Called once, when the session ends without an error.

        Arguments:
            loop: `is_over` is False if the session was stopped from outside; `end_reason` says why
                training ended before its duration was over, if a callback has called `end`.
        """

    def close(self, loop: Loop) -> None:
        """Called once at the end of the loop, also after an error or Ctrl-C, even in `start`.

        Arguments:
            loop: at the end of the session. Undo all changes made in `start`.
        """

    def recorded(self, loop: Loop, done: bool) -> None:
        """Called last in a session without an error: all files of the run are written.

        Arguments:
            done: True if the run is finished, so there is no later session.
        """

    def summary(self) -> list[tuple[str, str]]:
        """Rows for the summary table at the end of training."""
        return []


def is_ours(callback: Callback) -> bool:
    """True if a callback belongs to Setpoint, so that its declared methods are all it does."""
    return type(callback).__module__.partition(".")[0] == "setpoint"


def interval_of(callback: Callback) -> float:
    """The `min_interval` of a callback.

    Raises:
        SetpointError: the value is not a number of seconds.
    """
    seconds: object = callback.min_interval
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise SetpointError(
            f"{type(callback).__name__}.min_interval = {for_error(seconds)} is not a number "
            f"of seconds.\nValid: 0 (every step) or a positive number of seconds"
        )
    return seconds


def overrides(callback: Callback, method: str) -> bool:
    """True if a callback overrides a method."""
    function = getattr(getattr(callback, method), "__func__", None)
    return function is not getattr(Callback, method)


@dataclass(frozen=True, slots=True)
class PendingStep:
    """Step that the device may still be computing while the host continues.

    Arguments:
        began: the position before the step.
        after: the position after the step, without its seconds.
        batch: the batch of this rank.
        total: counts of all ranks, and by source.
        complete: waits for the step's numbers and judges them.
        data: data position before the step, for replica groups, which may repeat it.
    """

    began: Position
    after: Position
    batch: StepBatch
    total: Count
    by_source: BySource
    lr: float
    complete: CompleteStep
    data: dict[str, Any]


class Loop:
    """Takes steps until the duration is over or a stop is requested.

    `launch` starts a step without waiting for its numbers if the engine is ahead of the host; the
    step is then `pending`. `handle_pending` completes it and calls `after_step` of the callbacks:
    immediately if a callback `needs_result`, otherwise during the next step, before the weights
    change.

    All periodic actions are callbacks. Callbacks run after each step in the order of their phases,
    and read the loop's `previous`, `position`, `is_over` and `components`.

    Arguments:
        ended: reason why training ended before its duration was over; None if it did not.
        roll_back: restores a checkpoint after a non-finite step or a loss spike, and returns its
            position; None: such a step ends the run.
        liveness: checks that all ranks answer, before steps at which `resilience.liveness_every` is
            due.
        until: step after which the session stops; None: at the end of training.
        metrics: collects logged metrics; None: create a new log.
    """

    def __init__(
        self,
        job: Job,
        components: Components,
        callbacks: Sequence[Callback],
        stop: StopRequest,
        position: Position,
        ended: str | None = None,
        roll_back: Callable[[Loop, StepResult], Position] | None = None,
        liveness: Callable[[int], None] | None = None,
        until: int | None = None,
        metrics: MetricLog | None = None,
    ) -> None:
        self.job = job
        self.components = components
        self.callbacks = sorted(callbacks, key=lambda callback: callback.phase)
        # Callbacks with work around each step; the next call of those with an interval, by id.
        self._before_update = self._overriding("before_update")
        self._after_launch = self._overriding("after_launch")
        self._after_step = self._overriding("after_step")
        self._needs_result = self._overriding("needs_result")
        now = time.monotonic()
        self._due = {
            id(callback): now + interval
            for callback in callbacks
            if (interval := interval_of(callback))
        }
        self.stop = stop
        self.position = self.previous = position
        self.end_reason = ended
        self.roll_back, self.liveness = roll_back, liveness
        self.until = until
        self.engine: Engine = build_engine(job, components)
        self.waits_always = not self.engine.is_ahead or any(
            not is_ours(callback) and callback not in self._needs_result
            for callback in self.callbacks
        )
        measured = job.tracking.metrics.step_time
        self.times = StepTimes(measured != "none", measured == "device")
        self.engine.span = self.times
        self.metrics = self.engine.metrics = MetricLog() if metrics is None else metrics
        self.sync = StepSync(components.world, stop, self.metrics, self.times)
        params = components.weights.named_parameters()
        trained = [name for name, param in params if param.requires_grad]
        spans = job.optimizer.frozen_spans
        self.freezing = Freezing(spans, trained) if spans else None
        self.merge = None if job.adapter is None else job.adapter.merge
        # The current phase, and whether a row of the current step is still to come.
        self.phase, self.can_log = Phase.STEP, False
        # The step whose numbers are not read yet, and the last completed one of this session.
        self.pending: PendingStep | None = None
        self.result: StepResult | None = None
        # Of the last evaluation, by callbacks.
        self.scores: Scores = {}
        # Seconds of this rank since the session began: in steps, and waiting for data in these.
        self.stepping = self.waited = 0.0

    def run(self) -> None:
        """Train until the end, or until the step after a request to stop.

        If a stop is requested while all steps are saved, the current step is abandoned.

        Raises:
            KeyboardInterrupt: Ctrl-C does not wait for the end of the step.
        """
        try:
            with self._open_callbacks():
                while self.goes_on:
                    is_first = self.result is None
                    self.launch()
                    if self.sync.is_shared:
                        step_has_ended()
                    if is_first or self.needs_result:
                        self.handle_pending()
                    self.can_log = False
                self.handle_pending()
                self.stop.answer()
                for callback in self.callbacks:
                    self.phase = callback.phase
                    callback.finish(self)
        except Stopped as stopped:
            if stopped.lost:
                raise

    @contextmanager
    def _open_callbacks(self) -> Iterator[None]:
        """Start the callbacks, and close them however the loop ends."""
        self.components.model.train()
        # If a rank left during a step, the others would wait for it.
        self.stop.defers = self.sync.is_shared
        # Callbacks may exist on some ranks only.
        has_others = any(not is_ours(callback) for callback in self.callbacks)
        self.metrics.always = self.components.world.any(has_others)
        with ExitStack() as ending:
            ending.callback(self.components.feed.close)
            measured = self.job.tracking.metrics.step_time
            if self.sync.is_shared and measured in ("waits", "device"):
                ending.enter_context(measuring_waits(self.times))
                self.components.replicas.on_last = self.times.waits_until_end
            for callback in self.callbacks:
                ending.callback(callback.close, self)
                part = TIME_CATEGORIES.get(callback.phase)
                with nullcontext() if part is None else self.times(part):
                    callback.start(self)
            yield

    def _overriding(self, method: str) -> list[Callback]:
        return [callback for callback in self.callbacks if overrides(callback, method)]

    @property
    def is_over(self) -> bool:
        """True if nothing is left to train: the duration is over, or a callback ended training."""
        return self.end_reason is not None or is_over(self.job.duration, self.position)

    @property
    def is_at_limit(self) -> bool:
        """True if the session takes no further steps, even if the run is not over."""
        return self.until is not None and self.position.step >= self.until

    @property
    def goes_on(self) -> bool:
        """True if there is another step; all ranks of a job get the same answer."""
        return not self.is_at_limit and not self.is_over and not self.sync.is_stopping

    @property
    def needs_result(self) -> bool:
        """True if the numbers of the pending step are needed before the next one begins."""
        return (
            self.waits_always
            or self.is_over
            or self.is_at_limit
            or self.sync.saves_now
            or self.sync.is_stopping
            or any(callback.needs_result(self) for callback in self._needs_result)
        )

    def is_due(self, period: Period) -> bool:
        """True if a multiple of a period lies within the step just taken."""
        return is_due(period, self.previous, self.position, self.is_over)

    def launch(self) -> None:
        """Take a step, and advance the position unless the step does not count."""
        self.phase, self.can_log = Phase.STEP, True
        self.metrics.begin(self.position.step + 1)
        if self.liveness is not None and self.is_due(self.job.resilience.liveness_every):
            self.liveness(self.position.step + 1)
        began = self.sync.began = time.perf_counter()
        with self.times(f"step {self.position.step + 1}"):
            pending = self.take_step()
        self.stepping += time.perf_counter() - began
        # A device that is ahead has the verdict itself; the host reads it later.
        verdict = Verdict.TAKEN if self.engine.is_ahead else pending.complete().verdict
        if verdict is Verdict.RETAKEN:
            self.components.feed.load_state_dict(pending.data)
            self.metrics.drop()
            self.sync.retake_step()
            return
        self.pending = pending
        if verdict is Verdict.ROLLED_BACK:
            return
        self.stop.has_unsaved = True
        self.advance(self.sync.end_step())
        if self.merge is not None and self.is_due(self.merge.every):
            from setpoint.train.build.adapter import merge_adapters

            assert self.job.seed is not None
            parts = self.components.model, self.components.weights, self.components.optimizer
            seed, step = self.job.seed, self.position.step
            merge_adapters(*parts, seed, step, self.merge.optimizer_state)
        for callback in self._after_launch:
            callback.after_launch(self)

    def take_step(self) -> PendingStep:
        """Draw the batches of one step, compute its gradients and update the weights.

        Raises:
            RunError: no target has weight; an imported optimizer fails; or `complete_pending`
                raises it for the previous step.
        """
        components, position = self.components, self.position
        groups = components.replica_groups
        assert self.job.seed is not None
        data: dict[str, Any] = {}
        if groups is not None:
            groups.begin(position.step)
            position = self.position  # which another group's state has moved
        components.feed.accumulation = self.job.batch.accumulation_at(position.step)
        if groups is not None:
            components.feed.divide(groups.rank, groups.size)
            data = components.feed.state_dict()
        replica = 0 if groups is None else groups.rank * components.world.size
        seed_step(self.job.seed, position.step, components.world.noise_rank + replica)
        components.begin_noise(position.step)
        lr = self.job.optimizer.lr * components.schedule.factor(position)

        # The mean is over the tokens of the whole step, so it does not depend on accumulation.
        with self.times("data"):
            start = time.perf_counter()
            batch = components.feed.take()
            self.waited += time.perf_counter() - start
        with self.times("communication"):
            total, by_source, epoch = count_over_ranks(batch, components.world, groups)
        if epoch is not None:
            components.feed.agree(epoch)
        if self.sync.is_shared:  # the ranks are synchronized now
            step_begins(first=not self.stepping)
        after = replace(
            position,
            step=position.step + 1,
            tokens=position.tokens + total.tokens,
            epochs=components.feed.epoch,
        )
        step = PendingStep(position, after, batch, total, by_source, lr, complete_retaken, data)
        if groups is not None and groups.breaks:
            groups.commits()  # it votes against the step, for all groups
            return step
        if not total.weight:
            targets = sum(micro_batch.target_tokens for micro_batch in batch.batches)
            raise RunError(
                f"step {position.step + 1}: none of the {targets} targets of the batch counts: "
                f"the weights of the data, loss.ignore_index or loss.token_weights exclude all of "
                f"them; the step was not taken. Enlarge batch.global_size "
                f"({self.job.batch.global_size}), so that each batch has some"
            )
        sums = self.engine.forward_backward(batch, total)
        self.handle_pending()
        for callback in self._before_update:
            callback.before_update(self)
        done = 0.0 if sums.routing is None else share_done(self.job.horizon(), after)
        if self.engine.norms is not None:
            self.engine.norms.is_on = self._may_have_row(after)
        self.sync.exchange()
        frozen = frozenset[str]() if self.freezing is None else self.freezing.now(position)
        return replace(step, complete=self.engine.update(sums, Rates(lr, done, frozen)))

    def _may_have_row(self, after: Position) -> bool:
        """True if a metrics row may follow a step that ends at a position.

        The seconds of the step are not known yet.
        """
        every = self.job.tracking.every
        if every.unit in ("never", "seconds"):
            return every.unit == "seconds"
        last = is_over(self.job.duration, after)
        return last or is_due(every, self.position, after, last)

    def advance(self, seconds: float) -> None:
        """Move the position past the pending step."""
        assert self.pending is not None
        seconds += self.position.seconds
        self.previous, self.position = self.position, replace(self.pending.after, seconds=seconds)

    def handle_pending(self) -> None:
        """Complete the pending step: read its numbers, and call the callbacks after it.

        Raises:
            RunError: the policy for a bad step ends the run, or cannot roll it back.
        """
        if self.pending is None:
            return
        is_first = self.result is None
        result = self.complete_pending()
        if result.verdict is Verdict.ROLLED_BACK:
            assert self.roll_back is not None
            self.can_log = False
            self.continue_from(self.roll_back(self, result))
            return
        for callback in self.callbacks if is_first else ():
            callback.after_first_step(self, result)
        for callback in self._after_step:
            if callback.min_interval:
                now = time.monotonic()
                if now < self._due[id(callback)]:
                    continue
                self._due[id(callback)] = now + callback.min_interval
            self.phase = callback.phase
            part = TIME_CATEGORIES.get(callback.phase)
            with nullcontext() if part is None else self.times(part):
                callback.after_step(self, result)
        self.phase = Phase.STEP

    def complete_pending(self) -> StepResult:
        """Read the numbers of the pending step, and apply the policies for bad steps.

        Raises:
            RunError: a policy ends the run at a non-finite step or a loss spike, which has not
                changed any weight.
        """
        step, spikes, non_finite = self.pending, self.components.spikes, self.components.non_finite
        assert step is not None
        self.pending = None
        result = step.complete()
        wrong = "" if result.policy is None else result.policy.describe(result)
        if result.policy is not non_finite:
            non_finite.in_a_row = 0
        if spikes is not None and math.isfinite(result.loss):
            spikes.note(result.loss, trained_on=not wrong)
        by_source = step.by_source._replace(nats=result.by_source.nats)
        result = replace(
            result, lr=step.lr, tokens=step.total.tokens, by_source=by_source, wrong=wrong,
            began=step.began,
        )  # fmt: skip
        for callback in self.callbacks if wrong else ():
            callback.bad_step(self, step.batch, step.total, result)
        if result.policy is not None:
            now, self.position = self.position, result.began  # errors report this position
            result.policy.apply(result, self.job, can_roll_back=self.roll_back is not None)
            self.position = now
        if result.verdict is not Verdict.ROLLED_BACK:
            self.result = result
        return result

    def continue_from(self, position: Position) -> None:
        """Continue from the current state of the components, before a step."""
        self.position = self.previous = position
        self.scores = {}
        self.stop.has_unsaved = False
        for callback in self.callbacks:
            callback.rewound(self)

    def step(self) -> StepResult:
        """Take a step and read its numbers."""
        while self.pending is None:
            self.launch()
        return self.complete_pending()

    def check(self) -> None:
        """Abandon repeatable work, such as an evaluation, on all ranks or on none.

        Raises:
            Abandoned: a stop was requested.
        """
        has_progressed()
        self.sync.check()

    def log(self, *, reduce: Reduce = "mean", **metrics: float | Tensor) -> None:
        """Log metrics for the next row; for use by callbacks in `before_update` and `after_step`.

        Ranks may log different metrics, and need not log in every step.

        Arguments:
            reduce: see `MetricLog.add`; models and losses use `setpoint.shapes.logged.log`.
            metrics: numbers or one-element tensors by name; no device is synchronized.

        Raises:
            RunError: the step's row is already written, or does not exist; or see `MetricLog.add`.
        """
        if not self.can_log or self.phase >= Phase.LOG:
            raise RunError(
                f"loop.log({next(iter(metrics), '')}=...): metrics are logged in before_update and "
                f"after_step, before the row of the step is written. Valid: one of these methods, "
                f"with phase = Phase.OBSERVE, the default, or Phase.STEP"
            )
        self.metrics.add(reduce, metrics)

    def end(self, reason: str) -> None:
        """End training early but cleanly; for use by callbacks, which must call it on all ranks.

        The last row, an evaluation and a checkpoint follow as at the regular end.
        """
        self.end_reason = reason


def build_engine(job: Job, components: Components) -> Engine:
    """Build the engine of a job: for DeepSpeed, for a pipeline, or the default engine."""
    if components.replicas.holds_state:
        from setpoint.train.deepspeed_engine import ZeroEngine

        return ZeroEngine(job, components)
    kind = Engine if components.pipeline is None else PipelineEngine
    engine, metrics = kind(job, components), job.tracking.metrics
    if metrics.grad_norms or metrics.param_norms or metrics.update_ratios:
        engine.norms = NormMetrics(metrics, components, engine.counted_elsewhere)
    return engine
