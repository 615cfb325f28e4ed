"""The training loop, from top to bottom, and what can happen around its steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from setpoint.config import RunError
from setpoint.parallel.hangs import has_progressed, step_begins, step_has_ended
from setpoint.parallel.replicas import Replicas
from setpoint.parallel.seeds import seed_step
from setpoint.resilience.signals import Abandoned, Stopped
from setpoint.shapes.batch import ONE_SOURCE, BySource
from setpoint.shapes.logged import MetricLog
from setpoint.train.bad_steps import BadSteps, SpikedSteps, Verdict
from setpoint.train.engine import Engine, Finish, Finished, Rates
from setpoint.train.learning_rate import Freezing
from setpoint.train.merging import merge_if_due
from setpoint.train.objective import count_over_ranks
from setpoint.train.pipeline_engine import engine_of
from setpoint.train.position import Position, is_due, is_over, share_done
from setpoint.train.step_times import StepTimes, telling_waits_apart

if TYPE_CHECKING:
    from torch import Tensor

    from setpoint.resilience.signals import StopRequest
    from setpoint.shapes.batch import Count, StepBatch
    from setpoint.shapes.logged import Reduce
    from setpoint.shapes.outcome import Routing
    from setpoint.train.build.components import Components
    from setpoint.train.config import Job
    from setpoint.train.evaluation.evaluate import Scores


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one optimizer step was.

    Arguments:
        loss: what is minimized: the mean over the tokens of the step's global batch by their
            weights, in nats, with all that the loss and the model add to the cross-entropy.
        nats: the cross-entropy alone, all targets that count weighing the same.
        tokens: that the model read, without padding, whether their targets count or not.
        grad_norm: global norm of the gradients before clipping.
        routing: how they chose experts, on all ranks; None for models without, and where it was
            skipped.
        by_source: what of the global batch is from each source.
        verdict: what became of it.
        wrong: why it is not trained on where that is so, in words; empty otherwise.
        policy: by which it is not; None where nothing is wrong.
        began: where it began.
    """

    loss: float
    nats: float
    grad_norm: float
    lr: float
    tokens: int
    routing: Routing | None = None
    by_source: BySource = ONE_SOURCE
    verdict: Verdict = Verdict.TAKEN
    wrong: str = ""
    policy: BadSteps | None = None
    began: Position = field(default_factory=Position)

    @property
    def step(self) -> int:
        """Its number."""
        return self.began.step + 1

    @property
    def cause(self) -> str:
        """What events call the reason for which a step is not trained on."""
        return "spike" if isinstance(self.policy, SpikedSteps) else "non_finite"


@dataclass(frozen=True, slots=True)
class Launched:
    """A step that a device may still compute, while the host goes on.

    Arguments:
        batch: this rank's.
        whole: what it counts on all ranks, and of each source.
        finish: waits for its numbers.
    """

    began: Position
    batch: StepBatch
    whole: Count
    by_source: BySource
    lr: float
    finish: Finish


KeepBad = Callable[["Loop", "StepBatch", "Count", StepResult], None]


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

    def close(self, loop: Loop) -> None:
        """Called once at the very end, after an error and Ctrl-C too, even one inside `start`.

        Arguments:
            loop: where the session ended. What `start` has changed is put back here.
        """


def _is_ours(callback: Callback) -> bool:
    return type(callback).__module__.partition(".")[0] == "setpoint"


class Loop:
    """Takes steps until the duration is over or a stop is requested.

    What happens every so often is a callback's business; the callbacks run after each step, by
    their phases, and see the loop's `before`, `position`, `last` and `parts`. Without any, the same
    model is trained.

    Arguments:
        ended: why nothing is left to train although the duration is not over; None where it is.
        roll_back: brings the components to a checkpoint after a step that is not finite or a loss
            spike, and returns its position; None where nothing was saved.
        keep_bad: keeps the batch of a step that is not trained on; None: nothing does.
        until: the step after which a session ends, as by a request to stop; None: at the end.
        metrics: collects what the user's code logs; None: one that begins empty.
        liveness: whether all ranks answer before a step, where `resilience.liveness_every` is due.
    """

    def __init__(
        self,
        job: Job,
        parts: Components,
        callbacks: Sequence[Callback],
        stop: StopRequest,
        position: Position,
        ended: str | None = None,
        roll_back: Callable[[Loop, StepResult], Position] | None = None,
        liveness: Callable[[int], None] | None = None,
        keep_bad: KeepBad | None = None,
        until: int | None = None,
        metrics: MetricLog | None = None,
    ) -> None:
        self.job = job
        self.parts = parts
        self.callbacks = sorted(callbacks, key=lambda callback: callback.phase)
        self.stop = stop
        self.position = position
        self.before = position
        self.last = ended is not None
        self.ended = ended
        # Of the last evaluation, which callbacks make.
        self.scores: Scores = {}
        # How the experts were chosen in the last step that was taken, by all ranks.
        self.routing: Routing | None = None
        self.engine: Engine = engine_of(job, parts)
        measured = job.tracking.metrics.step_time
        self.times = StepTimes(measured != "none", measured == "device")
        self.engine.span = self.times
        self.metrics = self.engine.metrics = MetricLog() if metrics is None else metrics
        # Whether a row for the present step is still to come, for `log`.
        self.logs = False
        names = [name for name, each in parts.weights.named_parameters() if each.requires_grad]
        self.freezing = Freezing(job.optimizer.frozen_spans, names)
        self.roll_back = roll_back
        self.liveness = liveness
        self.keep_bad = keep_bad
        # Where the data went on at the last rollback, and from which step.
        self.rewound: dict[str, Any] | None = None
        self.until = until
        # What is being done, for those who look at a run from outside: which phase it belongs to,
        # and the last step that was taken in this session.
        self.doing = Phase.STEP
        self.result: StepResult | None = None
        # Whether the ranks are to stop, as they agreed; None before their first collective.
        self.stopping: bool | None = None
        # Whether a checkpoint was asked for in the last step, of any rank.
        self.saves_now = False
        # By the clock: when the step began, with what the other ranks have not heard of before it;
        # what this rank has reported of it; and the mean of what all have.
        self.began = self.unshared = self.reported = self.agreed = 0.0
        # The step whose numbers were not read yet.
        self.launched: Launched | None = None
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
            self._run()
        except Stopped as stopped:
            if stopped.lost:
                raise

    def _run(self) -> None:
        self.parts.model.train()
        # A rank that left in the middle of a step would leave the others waiting for it.
        self.stop.defers = self.is_shared
        # Callbacks may be on some ranks only.
        self.metrics.always = self.parts.world.any(
            any(not _is_ours(callback) for callback in self.callbacks)
        )
        with ExitStack() as ending:
            ending.callback(self.parts.feed.close)
            if self.is_shared and self.times.is_on:
                ending.enter_context(telling_waits_apart(self.times))
                if isinstance(self.parts.replicas, Replicas):
                    self.parts.replicas.on_last = self.times.waits_until_end
            for callback in self.callbacks:
                ending.callback(callback.close, self)
                with self.part_of(callback):
                    callback.start(self)
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

    @property
    def span(self) -> Callable[[str], AbstractContextManager[Any]]:
        """Names the parts of a step in the traces of a profiler."""
        return self.times.trace

    @span.setter
    def span(self, span: Callable[[str], AbstractContextManager[Any]]) -> None:
        self.times.trace = span

    def part_of(self, callback: Callback) -> AbstractContextManager[Any]:
        """The span that the time of a callback belongs to."""
        part = PARTS_OF_PHASES.get(callback.phase)
        return NO_PART if part is None else self.times(part)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to train, by the duration or because a callback ended it."""
        return self.ended is not None or is_over(self.job.duration, self.position)

    @property
    def is_at_limit(self) -> bool:
        """Whether the session is to take no further step, whatever is left to train."""
        return self.until is not None and self.position.step >= self.until

    @property
    def is_shared(self) -> bool:
        """Whether other ranks take the same steps."""
        return self.parts.world.size > 1

    @property
    def goes_on(self) -> bool:
        """Whether there is another step; all ranks of a job give the same answer."""
        if self.is_at_limit:
            return False
        if self.is_over or not self.is_shared:
            return not self.is_over and not self.stop.requested
        if self.stopping is None:
            self.agree_to_stop(self.parts.world.any(self.stop.requested))
        return not self.stopping

    def check(self) -> None:
        """Leave work that can be done again, such as an evaluation, on all ranks or on none.

        Raises:
            Abandoned: if a stop was asked for.
        """
        has_progressed()
        if not self.is_shared:
            self.stop.check()
            return
        self.agree_to_stop(self.stopping or self.parts.world.any(self.stop.requested))
        if self.stopping:
            raise Abandoned

    def agree_to_stop(self, stopping: bool) -> None:
        """Take note of whether any rank was asked to stop, and let all of them stop for the same.

        Arguments:
            stopping: the same on all ranks.
        """
        if stopping and not self.stopping:
            asked = self.parts.world.all_of((self.stop.signal, self.stop.reason))
            first = next((number, why) for number, why in asked if number is not None)
            self.stop.agree(*first)
        self.stopping = stopping

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
        self.ended, self.last = reason, True

    @property
    def is_needed(self) -> bool:
        """Whether the numbers of the step that was launched are needed before the next one."""
        stops = self.stopping if self.is_shared else self.stop.requested
        return (
            self.last
            or self.is_at_limit
            or self.saves_now
            or bool(stops)
            or not self.engine.is_ahead
            or any(callback.is_due(self) for callback in self.callbacks)
        )

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
            with self.part_of(callback):
                callback.after_step(self, result)
        self.doing = Phase.STEP

    def step(self) -> StepResult:
        """Take a step and read its numbers."""
        self.launch()
        return self.settle()

    def launch(self) -> None:
        """Take a step, and move the position past it unless it does not count."""
        self.doing, self.logs = Phase.STEP, True
        self.metrics.begin(self.position.step + 1)
        if self.liveness is not None:
            every = self.job.resilience.liveness_every
            if is_due(every, self.before, self.position, last=False):
                self.liveness(self.position.step + 1)
        started = time.perf_counter()
        self.began = started - self.unshared
        with self.times(f"step {self.position.step + 1}"):
            launched = self.take_step()
        self.stepping += time.perf_counter() - started
        self.launched = launched
        if not self.engine.is_ahead and launched.finish().verdict is Verdict.ROLLED_BACK:
            return
        self.stop.busy = True
        spent = time.perf_counter() - self.began
        if self.is_shared:
            # Position and decisions are the same on all ranks: the rest counts for the next step.
            self.unshared, spent = spent - self.reported, self.agreed
        self.advance(launched.whole.tokens, spent)
        merge_if_due(self.job, self.parts, self.before, self.position)
        for callback in self.callbacks:
            callback.after_launch(self)

    def go_on_at(self, position: Position) -> None:
        """Go on from a state that the components have now, before a step."""
        self.position = self.before = position
        self.scores, self.routing = {}, None
        self.stop.busy = False
        for callback in self.callbacks:
            callback.rewound(self)

    def take_step(self) -> Launched:
        """Launch one step, again where a replica group was lost in the middle of it.

        Raises:
            RunError: as `try_step` does; or there are too few replica groups.
        """
        groups, feed = self.parts.groups, self.parts.feed
        if groups is None:
            return self.try_step()
        while True:
            groups.begin(self.position.step)
            feed.divide(groups.rank, groups.size)
            before = feed.state_dict()
            launched = self.try_step()
            if launched.finish().verdict is not Verdict.RETAKEN:
                return launched
            feed.load_state_dict(before)
            self.metrics.drop()

    def try_step(self) -> Launched:
        """Draw the batches of one step, and let the engine take it.

        Raises:
            RunError: if no target counts; an optimizer of the user's own fails; or as `settle`
                does, of the step before.
        """
        parts, at = self.parts, self.position
        assert self.job.seed is not None
        group = 0 if parts.groups is None else parts.groups.rank * parts.world.size
        seed_step(self.job.seed, self.position.step, parts.world.noise_rank + group)
        if parts.noise is not None:
            parts.noise.step = self.position.step
        lr = self.job.optimizer.lr * parts.schedule.factor(at)

        # The mean is over the tokens of the whole step, so that accumulation cannot change it.
        with self.times("data"):
            asked = time.perf_counter()
            step = parts.feed.take()
            self.waited += time.perf_counter() - asked
        with self.times("communication"):
            whole, by_source = count_over_ranks(step, parts.world, parts.groups)
        # All ranks are here now, whatever each has done since the last step.
        step_begins(first=not self.stepping)
        if parts.groups is not None and parts.groups.breaks:
            parts.groups.commits()  # it does not, and says so to the others
            return Launched(at, step, whole, by_source, lr, lambda: Finished(Verdict.RETAKEN))
        if not whole.weight:
            self.refuse_nothing(sum(batch.target_tokens for batch in step.batches))
        sums = self.engine.forward_backward(step, whole)
        self.catch_up()
        for callback in self.callbacks:
            callback.before_update(self)
        after = replace(
            at, step=at.step + 1, tokens=at.tokens + whole.tokens, epochs=parts.feed.epoch
        )
        done = 0.0 if sums.routing is None else share_done(self.job.horizon(), after)
        if self.engine.norms is not None:
            self.engine.norms.is_on = self.has_row(at, after)
        self.report()
        finish = self.engine.update(sums, Rates(lr, done, self.freezing.now(at)))
        return Launched(at, step, whole, by_source, lr, finish)

    def report(self) -> None:
        """Tell the other ranks what this one was asked for, and hear the same of them.

        The mean of the seconds that they spent since the last time moves the position of all.
        """
        self.reported = time.perf_counter() - self.began
        own = (self.stop.requested, self.stop.saves_now, bool(self.metrics), self.reported)
        with self.times("communication"):
            stops, saves, logs, seconds = self.parts.world.sum_numbers(*own)
        self.saves_now, self.metrics.meets = saves > 0, logs > 0
        if self.saves_now:
            self.stop.answer_save()
        if self.is_shared:
            self.agreed = seconds / self.parts.world.size
            self.agree_to_stop(stops > 0)

    def settle(self) -> StepResult:
        """Read the numbers of the step that was launched last, and count what is wrong with it.

        Raises:
            RunError: the loss or the norm is not finite or the loss a spike, and their policy does
                not go on from that; no weight was changed by the step.
        """
        launched, spikes = self.launched, self.parts.spikes
        assert launched is not None
        self.launched = None
        ended, at = launched.finish(), launched.began
        wrong = ""
        if ended.policy is self.parts.non_finite:
            wrong = f"the loss is {ended.loss:.6g} and the gradient norm {ended.grad_norm:.6g}"
        else:
            self.parts.non_finite.reset()
            if spikes is not None and ended.policy is spikes:
                wrong = spikes.describe(ended.loss)
        if spikes is not None and math.isfinite(ended.loss):
            spikes.note(ended.loss, trained_on=not wrong)
        result = StepResult(
            ended.loss, ended.nats, ended.grad_norm, launched.lr, launched.whole.tokens,
            ended.routing, launched.by_source._replace(nats=ended.by_source), ended.verdict, wrong,
            ended.policy, at,
        )  # fmt: skip
        if wrong and self.keep_bad is not None:
            self.keep_bad(self, launched.batch, launched.whole, result)
        if ended.policy is not None:
            self._count_bad(result, ended.policy)
        if ended.verdict is not Verdict.ROLLED_BACK:
            self.result = result
            self.routing = self.routing if ended.routing is None else ended.routing
        return result

    def has_row(self, at: Position, after: Position) -> bool:
        """Whether a row of metrics may follow a step, as far as is known before its end.

        Arguments:
            after: where the step leads, but for its time, which the ranks do not agree on yet.
        """
        every = self.job.tracking.every
        if every.unit in ("never", "seconds"):
            return every.unit == "seconds"
        last = is_over(self.job.duration, after)
        return last or is_due(every, at, after, last)

    def _count_bad(self, result: StepResult, policy: BadSteps) -> None:
        """Count a step that is not trained on, or end the run before it.

        Raises:
            RunError: the policy does not go on.
        """
        now = self.position
        self.position = result.began
        if result.verdict is Verdict.SKIPPED:
            policy.skip(result.step, result.wrong)
        elif result.verdict is Verdict.REFUSED or self.roll_back is None:
            self.refuse(result, policy)
        self.position = now

    def rewind(self, result: StepResult) -> None:
        """Go back to a checkpoint after a step that does not count.

        Raises:
            RunError: if there is none, or the run has gone back to it too often.
        """
        assert self.roll_back is not None
        self.logs = False
        self.go_on_at(self.roll_back(self, result))
        self.rewound = {"step": self.position.step, "data": self.parts.feed.state_dict()}

    def advance(self, tokens: int, seconds: float) -> None:
        """Move the position past a step."""
        at = self.before = self.position
        self.position = Position(
            step=at.step + 1,
            tokens=at.tokens + tokens,
            epochs=self.parts.feed.epoch,
            seconds=at.seconds + seconds,
        )
        self.last = self.is_over

    def refuse_nothing(self, targets: int) -> None:
        """Stop where there is nothing to learn from: a mean over no tokens is no number.

        Raises:
            RunError: always.
        """
        raise RunError(
            f"step {self.position.step + 1}: none of the {targets} targets of the batch counts: "
            f"the weights of the data, loss.ignore_index or loss.token_weights leave all of them "
            f"out; the step was not taken. Enlarge batch.global_size "
            f"({self.job.batch.global_size}), so that each batch has some"
        )

    def refuse(self, result: StepResult, policy: BadSteps) -> None:
        """Stop before weights that cannot be repaired are written.

        Raises:
            RunError: always.
        """
        what = "" if result.cause == "spike" else ", which is not finite"
        another = ", compute in fp32 or bf16" if self.job.precision.compute == "fp16" else ""
        raise RunError(
            f"step {result.step}: {result.wrong}{what}; the step was not taken, and "
            f"checkpoints hold the steps before it. Lower optimizer.lr ({self.job.optimizer.lr}), "
            f"lengthen the warm-up{another}, or go on without such steps: "
            f"{policy.field} = skip or rollback"
        )
