"""The training loop, from top to bottom, and what can happen around its steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from setpoint.config import RunError
from setpoint.parallel.determinism import seed_step
from setpoint.parallel.hangs import has_progressed, step_begins, step_has_ended
from setpoint.parallel.replicas import Replicas
from setpoint.parallel.zero import ZeroReplicas
from setpoint.resilience.signals import Stopped
from setpoint.shapes.batch import BySource
from setpoint.shapes.logged import MetricLog
from setpoint.train.deepspeed_engine import ZeroEngine
from setpoint.train.engine import Engine, Finish, PlainEngine, Rates, retaken
from setpoint.train.learning_rate import Freezing
from setpoint.train.merging import merge_if_due
from setpoint.train.metrics import NormMetrics
from setpoint.train.objective import count_over_ranks
from setpoint.train.pipeline_engine import PipelineEngine
from setpoint.train.position import Position, is_due, is_over, share_done
from setpoint.train.step_clock import StepSync, StepTimes, measuring_waits
from setpoint.train.verdict import StepResult, Verdict

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from setpoint.parallel.world import World
    from setpoint.resilience.signals import StopRequest
    from setpoint.shapes.batch import Count, StepBatch
    from setpoint.shapes.logged import Reduce
    from setpoint.shapes.outcome import Routing
    from setpoint.train.build.components import Components
    from setpoint.train.config import Job
    from setpoint.train.evaluation.scores import Scores


@dataclass(frozen=True, slots=True)
class Launched:
    """A step that a device may still compute, while the host goes on.

    Arguments:
        batch: this rank's.
        whole: what it counts on all ranks, and of each source.
        finish: waits for its numbers.
        data: where the data was before it, with replica groups, which may take the step again.
    """

    began: Position
    batch: StepBatch
    whole: Count
    by_source: BySource
    lr: float
    finish: Finish
    data: dict[str, Any]


class Phase(IntEnum):
    """When a callback runs, of those that are called after the same step."""

    STEP = 0
    """Belongs to the step itself, such as the end of a profile."""
    OBSERVE = 1
    """Reads what the step did, logs metrics, and writes events."""
    LOG = 2
    """Writes the row of metrics."""
    EVALUATE = 3
    """Evaluates the model."""
    KEEP = 4
    """Saves what the ones before have left."""
    TIDY = 5
    """Frees what is not needed any more."""
    LAST = 6
    """After everything that Setpoint does itself."""


PARTS_OF_PHASES = {Phase.EVALUATE: "evaluation", Phase.KEEP: "save"}
NO_PART = nullcontext()


class Callback:
    """Does nothing; subclasses override what they need.

    Callbacks of one phase run in the order in which they were added. Without one of its own, a
    callback runs before the row of the step is written and the checkpoint saved, so that both have
    what it logs and changes.
    """

    phase: Phase = Phase.OBSERVE

    def before_open(
        self, job: Job, directory: Path | None, world: World, show: Callable[[str], None]
    ) -> None:
        """Called on all ranks before a run directory is compared with the job, and opened.

        Of callbacks that are there by then: objects given to `train`, and operations.

        Arguments:
            directory: None for a new one.
            show: shows a line to people.
        """

    def rehearsed(self, job: Job, directory: Path | None) -> tuple[str, str] | None:
        """A row of what `check` says `before_open` would do; nothing is written."""

    def before_build(self, run: Any, ending: ExitStack) -> None:
        """Called on all ranks when the job agrees with its record, before anything is built.

        Of the same callbacks as `before_open`.

        Arguments:
            run: has `job`, `directory`, `world`, and `shown`, which shows lines to people.
            ending: closed when the run is left, with the error that ends it.
        """

    def opened(self, run: Any, within: ExitStack) -> None:
        """Called when the run directory is locked, before the newest checkpoint is loaded.

        Arguments:
            run: has `job`, `directory`, `events`, `progress`, `trackers`, and the `store` of
                checkpoints.
            within: closed at the end of the session, when all is recorded.
        """

    def fetch(self, newer_than: int | None) -> bool:
        """Bring a whole checkpoint where newer ones here are damaged; all ranks are called.

        Arguments:
            newer_than: the step of the newest that is whole; None where none is.

        Returns:
            whether there is a newer one in the store now.
        """
        return False

    def start(self, loop: Loop) -> None:
        """Called once, before the first step of this session."""

    def is_due(self, loop: Loop) -> bool:
        """Whether `after_step` is called at the end of the step that was just taken.

        For that the host waits until a device has computed it. Else the next step is begun, and
        `after_step` is called before that changes the weights.
        """
        return not _is_ours(self)

    def after_launch(self, loop: Loop) -> None:
        """Called at the end of each step, when a device may still compute it."""

    def before_update(self, loop: Loop) -> None:
        """Called in each step once its gradients are there, before anything follows from them."""

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Called after each step.

        Arguments:
            loop: `before` and `position` enclose the step; `last` if the run is over.
        """

    def bad_step(self, loop: Loop, batch: StepBatch, total: Count, result: StepResult) -> None:
        """Called after a step that is not finite or a loss spike, before its policy decides.

        Arguments:
            batch: this rank's.
            total: tokens, targets and weight of the batch of all ranks.
            result: `wrong` says what is.
        """

    def rewound(self, loop: Loop) -> None:
        """Called when the run has gone back to a checkpoint, in place of `after_step`.

        Arguments:
            loop: where it goes on; the steps after that come again, with other data.
        """

    def finish(self, loop: Loop) -> None:
        """Called once, when the session ends without an error.

        Arguments:
            loop: `last` is False if the session was stopped from outside; `ended` says why
                training ended before its duration was over, if a callback has called `end`.
        """

    def recorded(self, loop: Loop, done: bool) -> None:
        """Called last where a session ended without an error: all files of the run are written.

        Arguments:
            done: whether the run is finished, so that no later session comes.
        """

    def summary(self) -> list[tuple[str, str]]:
        """Rows for the table that the end of training prints."""
        return []

    def close(self, loop: Loop) -> None:
        """Called once at the end of the loop, after an error and Ctrl-C too, even in `start`.

        Arguments:
            loop: where the session ended. What `start` has changed is put back here.
        """


def _is_ours(callback: Callback) -> bool:
    return type(callback).__module__.partition(".")[0] == "setpoint"


class Loop:
    """Takes steps until the duration is over or a stop is requested.

    What happens every so often is a callback's business; the callbacks run after each step, by
    their phases, and see the loop's `before`, `position`, `last` and `components`. Without any, the
    same model is trained.

    Arguments:
        ended: why nothing is left to train although the duration is not over; None where it is.
        roll_back: brings the components to a checkpoint after a step that is not finite or a loss
            spike, and returns its position; None: such a step ends the run.
        until: the step after which a session ends, as by a request to stop; None: at the end.
        metrics: collects what the user's code logs; None: one that begins empty.
        liveness: whether all ranks answer before a step, where `resilience.liveness_every` is due.
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
        self.stop = stop
        self.position = self.before = position
        self.last = ended is not None
        self.end_reason = ended
        self.roll_back = roll_back
        self.liveness = liveness
        self.until = until
        self.engine: Engine = engine_of(job, components)
        measured = job.tracking.metrics.step_time
        self.times = StepTimes(measured != "none", measured == "device")
        self.engine.span = self.times
        self.metrics = self.engine.metrics = MetricLog() if metrics is None else metrics
        self.ranks = StepSync(components.world, stop, self.metrics, self.times)
        names = [name for name, held in components.weights.named_parameters() if held.requires_grad]
        self.freezing = Freezing(job.optimizer.frozen_spans, names)
        # The phase that is being done, and whether a row for the present step is still to come.
        self.doing, self.logs = Phase.STEP, False
        # The step whose numbers were not read yet, and the last one of this session whose were.
        self.launched: Launched | None = None
        self.result: StepResult | None = None
        # How the experts were chosen in the last step that was taken, by all ranks.
        self.routing: Routing | None = None
        # Of the last evaluation, which callbacks make.
        self.scores: Scores = {}
        # Where the data went on at the last rollback, and from which step.
        self.rewound: dict[str, Any] | None = None
        # Seconds of this rank since the session began: in steps, and of these waiting for data.
        self.stepping = self.waited = 0.0

    def run(self) -> None:
        """Train until the end, or until the step after a request to stop.

        A stop that is asked for before anything was trained that no checkpoint holds ends it in
        the middle of the step, which was not made then.

        Raises:
            KeyboardInterrupt: if Ctrl-C does not wait for the end of the step.
        """
        try:
            with self._begun():
                while self.goes_on:
                    is_first = self.result is None
                    self.launch()
                    step_has_ended()
                    if is_first or self.is_needed:
                        self.catch_up()
                    self.logs = False
                self.catch_up()
                self.stop.answer()
                for callback in self.callbacks:
                    self.doing = callback.phase
                    callback.finish(self)
        except Stopped as stopped:
            if stopped.lost:
                raise

    def launch(self) -> None:
        """Take a step, and move the position past it unless it does not count."""
        self.doing, self.logs = Phase.STEP, True
        self.metrics.begin(self.position.step + 1)
        if self.liveness is not None:
            every = self.job.resilience.liveness_every
            if is_due(every, self.before, self.position, last=False):
                self.liveness(self.position.step + 1)
        started = self.ranks.begin_step()
        with self.times(f"step {self.position.step + 1}"):
            launched = self.take_step()
        self.stepping += time.perf_counter() - started
        # A device that is ahead knows the verdict itself, and the host reads it later.
        verdict = Verdict.TAKEN if self.engine.is_ahead else launched.finish().verdict
        if verdict is Verdict.RETAKEN:
            self.components.feed.load_state_dict(launched.data)
            self.metrics.drop()
            self.ranks.retake_step()
            return
        self.launched = launched
        if verdict is Verdict.ROLLED_BACK:
            return
        self.stop.busy = True
        self.advance(launched.whole.tokens, self.ranks.end_step())
        merge_if_due(self.job, self.components, self.before, self.position)
        for callback in self.callbacks:
            callback.after_launch(self)

    def take_step(self) -> Launched:
        """Draw the batches of one step, and let the engine take it.

        Raises:
            RunError: if no target counts; an optimizer of the user's own fails; or as `settle`
                does, of the step before.
        """
        components, at, groups = self.components, self.position, self.components.groups
        assert self.job.seed is not None
        data: dict[str, Any] = {}
        if groups is not None:
            groups.begin(at.step)
            components.feed.divide(groups.rank, groups.size)
            data = components.feed.state_dict()
        replica = 0 if groups is None else groups.rank * components.world.size
        seed_step(self.job.seed, at.step, components.world.noise_rank + replica)
        if components.noise is not None:
            components.noise.step = at.step
        lr = self.job.optimizer.lr * components.schedule.factor(at)

        # The mean is over the tokens of the whole step, so that accumulation cannot change it.
        with self.times("data"):
            asked = time.perf_counter()
            batch = components.feed.take()
            self.waited += time.perf_counter() - asked
        with self.times("communication"):
            whole, by_source = count_over_ranks(batch, components.world, groups)
        # All ranks are here now, whatever each has done since the last step.
        step_begins(first=not self.stepping)
        if groups is not None and groups.breaks:
            groups.commits()  # it does not, and says so to the others
            return Launched(at, batch, whole, by_source, lr, retaken, data)
        if not whole.weight:
            self._raise_no_targets(sum(each.target_tokens for each in batch.batches))
        sums = self.engine.forward_backward(batch, whole)
        self.catch_up()
        for callback in self.callbacks:
            callback.before_update(self)
        after = replace(
            at, step=at.step + 1, tokens=at.tokens + whole.tokens, epochs=components.feed.epoch
        )
        done = 0.0 if sums.routing is None else share_done(self.job.horizon(), after)
        if self.engine.norms is not None:
            self.engine.norms.is_on = self._has_row(at, after)
        self.ranks.exchange()
        finish = self.engine.update(sums, Rates(lr, done, self.freezing.now(at)))
        return Launched(at, batch, whole, by_source, lr, finish, data)

    def catch_up(self) -> None:
        """Read the numbers of the step that was launched last, and do what follows it."""
        if self.launched is None:
            return
        result = self.settle()
        if result.verdict is Verdict.ROLLED_BACK:
            self.rewind(result)
            return
        for callback in self.callbacks:
            self.doing = callback.phase
            with self._part_of(callback):
                callback.after_step(self, result)
        self.doing = Phase.STEP

    def settle(self) -> StepResult:
        """Read the numbers of the step that was launched last, and count what is wrong with it.

        Raises:
            RunError: the loss or the norm is not finite or the loss a spike, and their policy does
                not go on from that; no weight was changed by the step.
        """
        launched, spikes = self.launched, self.components.spikes
        assert launched is not None
        self.launched = None
        result = launched.finish()
        wrong = ""
        if result.policy is self.components.non_finite:
            wrong = f"the loss is {result.loss:.6g} and the gradient norm {result.grad_norm:.6g}"
        else:
            self.components.non_finite.reset()
            if spikes is not None and result.policy is spikes:
                wrong = spikes.describe(result.loss)
        if spikes is not None and math.isfinite(result.loss):
            spikes.note(result.loss, trained_on=not wrong)
        by_source = launched.by_source._replace(nats=result.by_source.nats)
        result = replace(
            result, lr=launched.lr, tokens=launched.whole.tokens, by_source=by_source, wrong=wrong,
            began=launched.began,
        )  # fmt: skip
        for callback in self.callbacks if wrong else ():
            callback.bad_step(self, launched.batch, launched.whole, result)
        if result.policy is not None:
            now, self.position = self.position, result.began  # where an error says that it ended
            result.policy.count(result, self.job, can_roll_back=self.roll_back is not None)
            self.position = now
        if result.verdict is not Verdict.ROLLED_BACK:
            self.result = result
            self.routing = self.routing if result.routing is None else result.routing
        return result

    def rewind(self, result: StepResult) -> None:
        """Go back to a checkpoint after a step that does not count.

        Raises:
            RunError: if there is none, or the run has gone back to it too often.
        """
        assert self.roll_back is not None
        self.logs = False
        self.go_on_at(self.roll_back(self, result))
        self.rewound = {"step": self.position.step, "data": self.components.feed.state_dict()}

    def go_on_at(self, position: Position) -> None:
        """Go on from a state that the components have now, before a step."""
        self.position = self.before = position
        self.scores, self.routing = {}, None
        self.stop.busy = False
        for callback in self.callbacks:
            callback.rewound(self)

    def advance(self, tokens: int, seconds: float) -> None:
        """Move the position past a step."""
        at = self.before = self.position
        self.position = Position(
            step=at.step + 1,
            tokens=at.tokens + tokens,
            epochs=self.components.feed.epoch,
            seconds=at.seconds + seconds,
        )
        self.last = self.is_over

    def step(self) -> StepResult:
        """Take a step and read its numbers."""
        while self.launched is None:
            self.launch()
        return self.settle()

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to train, by the duration or because a callback ended it."""
        return self.end_reason is not None or is_over(self.job.duration, self.position)

    @property
    def is_at_limit(self) -> bool:
        """Whether the session is to take no further step, whatever is left to train."""
        return self.until is not None and self.position.step >= self.until

    @property
    def goes_on(self) -> bool:
        """Whether there is another step; all ranks of a job give the same answer."""
        return not self.is_at_limit and not self.is_over and not self.ranks.stop_requested

    @property
    def is_needed(self) -> bool:
        """Whether the numbers of the step that was launched are needed before the next one."""
        return (
            self.last
            or self.is_at_limit
            or self.ranks.saves_now
            or self.ranks.is_stopping
            or not self.engine.is_ahead
            or any(callback.is_due(self) for callback in self.callbacks)
        )

    def check(self) -> None:
        """Leave work that can be done again, such as an evaluation, on all ranks or on none.

        Raises:
            Abandoned: if a stop was asked for.
        """
        has_progressed()
        self.ranks.check()

    def log(self, *, reduce: Reduce = "mean", **metrics: float | Tensor) -> None:
        """Log metrics for the next row; for callbacks, in `before_update` and `after_step`.

        They need not be logged by all ranks or in all steps.

        Arguments:
            reduce: see `MetricLog.add`; models and losses use `setpoint.shapes.logged.log`.
            metrics: numbers or tensors of one element, by name; a device is not waited for.

        Raises:
            RunError: the row of the step is written already, or there is none; or see
                `MetricLog.add`.
        """
        if not self.logs or self.doing >= Phase.LOG:
            raise RunError(
                f"loop.log({next(iter(metrics), '')}=...): metrics are logged in before_update and "
                f"after_step, before the row of the step is written. Valid: one of these methods, "
                f"with phase = Phase.OBSERVE, the default, or Phase.STEP"
            )
        self.metrics.add(reduce, metrics)

    def end(self, reason: str) -> None:
        """End training in order before its duration is over; for callbacks, on all ranks alike.

        What is due at the end happens: the last row, an evaluation and a checkpoint.
        """
        self.end_reason, self.last = reason, True

    @property
    def span(self) -> Callable[[str], AbstractContextManager[Any]]:
        """Names the parts of a step in the traces of a profiler."""
        return self.times.trace

    @span.setter
    def span(self, span: Callable[[str], AbstractContextManager[Any]]) -> None:
        self.times.trace = span

    @contextmanager
    def _begun(self) -> Iterator[None]:
        """Start the callbacks, and close them however the loop is left."""
        self.components.model.train()
        # A rank that left in the middle of a step would leave the others waiting for it.
        self.stop.defers = self.ranks.is_shared
        # Callbacks may be on some ranks only.
        self.metrics.always = self.components.world.any(
            any(not _is_ours(callback) for callback in self.callbacks)
        )
        with ExitStack() as ending:
            ending.callback(self.components.feed.close)
            measured = self.job.tracking.metrics.step_time
            if self.ranks.is_shared and measured in ("waits", "device"):
                ending.enter_context(measuring_waits(self.times))
                if isinstance(self.components.replicas, Replicas):
                    self.components.replicas.on_last = self.times.waits_until_end
            for callback in self.callbacks:
                ending.callback(callback.close, self)
                with self._part_of(callback):
                    callback.start(self)
            yield

    def _part_of(self, callback: Callback) -> AbstractContextManager[Any]:
        """The span that the time of a callback belongs to."""
        part = PARTS_OF_PHASES.get(callback.phase)
        return NO_PART if part is None else self.times(part)

    def _has_row(self, at: Position, after: Position) -> bool:
        """Whether a row of metrics may follow a step, as far as is known before its end.

        Arguments:
            after: where the step leads, but for its time, which the ranks do not agree on yet.
        """
        every = self.job.tracking.every
        if every.unit in ("never", "seconds"):
            return every.unit == "seconds"
        last = is_over(self.job.duration, after)
        return last or is_due(every, at, after, last)

    def _raise_no_targets(self, targets: int) -> None:
        """Stop: every target of the batch is masked, and a mean over no tokens is no number.

        Raises:
            RunError: always.
        """
        raise RunError(
            f"step {self.position.step + 1}: none of the {targets} targets of the batch counts: "
            f"the weights of the data, loss.ignore_index or loss.token_weights leave all of them "
            f"out; the step was not taken. Enlarge batch.global_size "
            f"({self.job.batch.global_size}), so that each batch has some"
        )


def engine_of(job: Job, components: Components) -> Engine:
    """The engine of the steps of a job: DeepSpeed's, that of a pipeline, or the plain one."""
    if isinstance(components.replicas, ZeroReplicas):
        return ZeroEngine(job, components)
    engine = (
        PlainEngine(job, components)
        if components.pipeline is None
        else PipelineEngine(job, components)
    )
    metrics = job.tracking.metrics
    if metrics.grad_norms or metrics.param_norms or metrics.update_ratios:
        engine.norms = NormMetrics(metrics, components, engine.elsewhere)
    return engine
