"""The training loop, from top to bottom, and what can happen around its steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from setpoint.config import RunError, SetpointError
from setpoint.optim.clip import clip_gradients
from setpoint.parallel.seeds import seed_step
from setpoint.precision.autocast import compute_in
from setpoint.resilience.signals import Stopped
from setpoint.shapes.batch import Batch, Count
from setpoint.train.step.errors import stepping
from setpoint.train.step.objective import add_routing
from setpoint.train.step.position import Position, is_over, share_done
from setpoint.train.step.routing import balance_experts

if TYPE_CHECKING:
    from setpoint.resilience.signals import StopRequest
    from setpoint.shapes.outcome import Routing
    from setpoint.train.build.components import Components
    from setpoint.train.config import Job
    from setpoint.train.evaluation.score import Scores


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one optimizer step was.

    Arguments:
        loss: what is minimized: the mean over the tokens of the step's global batch by their
            weights, in nats, with all that the loss and the model add to the cross-entropy.
        nats: the cross-entropy alone, all targets that count weighing the same.
        tokens: that the model read, without padding, whether their targets count or not.
        grad_norm: global norm of the gradients before clipping.
        routing: how they chose experts; None for models without, and where it was skipped.
    """

    loss: float
    nats: float
    grad_norm: float
    lr: float
    tokens: int
    routing: Routing | None = None


class Phase(IntEnum):
    """When a callback runs, of those that are called after the same step."""

    STEP = 0
    """Belongs to the step itself, such as the end of a profile."""
    OBSERVE = 1
    """Reads what the step did, and writes rows and events."""
    EVALUATE = 2
    """Evaluates the model."""
    KEEP = 3
    """Saves what the ones before have left."""
    TIDY = 4
    """Frees what is not needed any more."""
    LAST = 5
    """After everything that Setpoint does itself."""


class Callback:
    """Does nothing; subclasses override what they need.

    Callbacks of one phase run in the order in which they were added.

    Raises:
        SetpointError: a subclass has a method of an older version, which nothing would call.
    """

    phase: Phase = Phase.LAST

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "after_update" in vars(cls):
            raise SetpointError(
                f"{cls.__name__}.after_update is never called: its name is now "
                f"after_step(loop, result), with the same arguments"
            )

    def start(self, loop: Loop) -> None:
        """Called once, before the first step of this session."""

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Called after each step.

        Arguments:
            loop: `before` and `position` enclose the step; `last` if the run is over.
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


class Loop:
    """Takes steps until the duration is over or a stop is requested.

    What happens every so often is a callback's business; the callbacks run after each step, by
    their phases, and see the loop's `before`, `position`, `last` and `parts`. Without any, the same
    model is trained.

    Arguments:
        ended: why nothing is left to train although the duration is not over; None where it is.
    """

    def __init__(
        self,
        job: Job,
        parts: Components,
        callbacks: Sequence[Callback],
        stop: StopRequest,
        position: Position,
        ended: str | None = None,
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
        self.clip_norm = job.optimizer.clip_norm
        self.clip_value = job.optimizer.clip_value
        # Names the parts of a step in the traces of a profiler.
        self.span: Callable[[str], AbstractContextManager[Any]] = nullcontext
        self.parameters = parts.weights.parameters()

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
        with ExitStack() as ending:
            for callback in self.callbacks:
                ending.callback(callback.close, self)
                callback.start(self)
            while self.goes_on:
                result = self.step()
                for callback in self.callbacks:
                    callback.after_step(self, result)
            self.stop.answer()
            for callback in self.callbacks:
                callback.finish(self)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to train, by the duration or because a callback ended it."""
        return self.ended is not None or is_over(self.job.duration, self.position)

    @property
    def goes_on(self) -> bool:
        """Whether there is another step."""
        return not self.is_over and not self.parts.world.any(self.stop.requested)

    def end(self, reason: str) -> None:
        """End training in order before its duration is over; for callbacks.

        What is due at the end happens: the last row, an evaluation and a checkpoint.
        """
        self.ended, self.last = reason, True

    def step(self) -> StepResult:
        """Take a step, move the position past it, and balance the experts by what it chose."""
        started = time.perf_counter()
        with self.span(f"update {self.position.step + 1}"):
            result = self.take_step()
        self.stop.busy = True
        self.advance(result, time.perf_counter() - started)
        if result.routing is not None:
            parts, done = self.parts, share_done(self.job.horizon(), self.position)
            self.routing = balance_experts(parts.model, result.routing, done, parts.world)
        return result

    def take_step(self) -> StepResult:
        """Take one optimizer step: accumulate, clip, update.

        Raises:
            RunError: if no target counts, or the loss or the norm is not finite, and the step is
                not taken then; or if an optimizer of the user's own fails.
        """
        parts = self.parts
        assert self.job.seed is not None
        seed_step(self.job.seed, self.position.step, parts.world.data_rank)
        lr = self.job.optimizer.lr * parts.schedule.factor(self.position)
        for group in parts.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_multiplier", 1.0)

        # The mean is over the tokens of the whole step, so that accumulation cannot change it.
        with self.span("data"):
            batches, counts, whole = parts.feed.take()
        if not whole.weight:
            self.refuse_nothing(sum(batch.target_tokens for batch in batches))
        sums, routing = torch.zeros(2, device=parts.device), None
        for batch, count in zip(batches, counts, strict=True):
            share, chosen = self.backward(batch, count, whole)
            sums += share
            if chosen is not None:
                routing = add_routing(routing, chosen, count.tokens / whole.tokens)

        parts.weights.grads_to_master()
        parts.scaler.unscale_(parts.optimizer)
        grad_norm = clip_gradients(self.parameters, self.clip_norm, self.clip_value)
        # The only place where the program waits for the device.
        loss, nats, norm = float(sums[0]), float(sums[1]), float(grad_norm)
        if not math.isfinite(loss) or (not math.isfinite(norm) and not parts.scaler.is_enabled()):
            self.refuse(loss, norm)
        with self.span("optimizer step"):
            with stepping(self.job.optimizer):
                made = parts.scaler.update_by(parts.optimizer)
            parts.weights.master_to_params()
            parts.optimizer.zero_grad(set_to_none=True)
        if not made:
            routing = None  # biases of routers move with the weights, or not at all
        return StepResult(loss, nats, norm, lr, whole.tokens, routing)

    def backward(self, batch: Batch, count: Count, whole: Count) -> tuple[Tensor, Routing | None]:
        """Forward and backward of one micro-batch; gradients add up.

        Returns:
            (2,) this micro-batch's share of the loss and of the cross-entropy alone, and how its
            tokens chose experts.
        """
        parts, formats = self.parts, self.job.precision
        computing = compute_in(formats.compute, formats.params, parts.device)
        with self.span("forward"), computing:
            output, auxiliary, routing = parts.objective(batch.to(parts.device))
        total = output.total
        if auxiliary is not None:
            # A mean over the tokens read here, whether their targets count or not: it gets its
            # share of the mean over all, as a part of the sum that is divided below.
            total = total + auxiliary * (whole.weight * count.tokens / whole.tokens)
        share = total / whole.weight
        with self.span("backward"):
            parts.scaler.scale(share).backward()
        return torch.stack((share.detach(), output.nats / whole.targets)), routing

    def advance(self, result: StepResult, seconds: float) -> None:
        """Move the position past a step."""
        at = self.before = self.position
        self.position = Position(
            step=at.step + 1,
            tokens=at.tokens + result.tokens,
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
            f"out; the update was not made. Enlarge batch.global_size "
            f"({self.job.batch.global_size}), so that each batch has some"
        )

    def refuse(self, loss: float, norm: float) -> None:
        """Stop before weights that cannot be repaired are written.

        Raises:
            RunError: always.
        """
        raise RunError(
            f"step {self.position.step + 1}: the loss is {loss} and the gradient norm {norm}, "
            f"which is not finite; the update was not made, and checkpoints hold the steps "
            f"before it. Lower optimizer.lr ({self.job.optimizer.lr}), lengthen the warm-up, or "
            f"compute in fp32 or bf16"
        )
