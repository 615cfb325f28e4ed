"""The engine of a step: gradients of the global mean, and what is done with them."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from setpoint.optim.clip import clip_gradients
from setpoint.precision.autocast import compute_in
from setpoint.train.step.errors import stepping
from setpoint.train.step.objective import add_routing
from setpoint.train.step.routing import balance_experts

if TYPE_CHECKING:
    from setpoint.shapes.batch import Batch, Count, StepBatch
    from setpoint.shapes.outcome import Routing
    from setpoint.train.build.components import Components
    from setpoint.train.config import Job


class Sums(NamedTuple):
    """What the forward passes of a step gave; nothing of it was waited for.

    Arguments:
        losses: (2,) fp32, this rank's shares of the loss and of the cross-entropy.
        routing: how the tokens of this rank chose experts; None for models without.
    """

    losses: Tensor
    routing: Routing | None


class Rates(NamedTuple):
    """What schedules say of a step.

    Arguments:
        lr: the learning rate, before the multipliers of groups.
        done: how much of the run is done after the step, for the bias rate of routers.
    """

    lr: float
    done: float


class Verdict(Enum):
    """What became of a step."""

    TAKEN = "taken"
    SKIPPED = "skipped"
    """The gradients of fp16 overflowed: the scale of the loss falls, the weights stay."""
    REFUSED = "refused"
    """The loss or the norm is not finite: nothing was changed, and the run cannot go on."""


@dataclass(frozen=True, slots=True)
class Finished:
    """How a step ended.

    Arguments:
        loss, nats: means over the global batch.
        grad_norm: global norm of the gradients before clipping.
        routing: how the tokens of all ranks chose experts; None unless the step was taken.
    """

    verdict: Verdict
    loss: float
    nats: float
    grad_norm: float
    routing: Routing | None = None


class Engine(Protocol):
    """Takes the steps of a loop, one `forward_backward` and one `finish` each.

    Arguments:
        span: names the parts of a step in the traces of a profiler.
    """

    span: Callable[[str], AbstractContextManager[Any]]

    def forward_backward(self, step: StepBatch, whole: Count) -> Sums:
        """Compute the gradients of the mean over the whole global batch.

        Arguments:
            whole: what the step counts on all ranks.
        """
        ...

    def finish(self, sums: Sums, rates: Rates) -> Finished:
        """Clip, let the optimizer step, and move the biases of routers.

        Raises:
            RunError: an optimizer of the user's own fails, or no scale of the loss is of use.
        """
        ...


class PlainEngine:
    """One process that holds the whole model, as an `Engine`."""

    def __init__(self, job: Job, parts: Components) -> None:
        self.job, self.parts = job, parts
        self.span: Callable[[str], AbstractContextManager[Any]] = nullcontext
        self.clip_norm = job.optimizer.clip_norm
        self.clip_value = job.optimizer.clip_value
        self.parameters = parts.weights.parameters()

    def forward_backward(self, step: StepBatch, whole: Count) -> Sums:
        """See `Engine.forward_backward`."""
        losses, routing = torch.zeros(2, device=self.parts.device), None
        for batch, count in zip(step.batches, step.counts, strict=True):
            share, chosen = self._backward(batch, count, whole)
            losses += share
            if chosen is not None:
                routing = add_routing(routing, chosen, count.tokens / whole.tokens)
        return Sums(losses, routing)

    def _backward(self, batch: Batch, count: Count, whole: Count) -> tuple[Tensor, Routing | None]:
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

    def finish(self, sums: Sums, rates: Rates) -> Finished:
        """See `Engine.finish`."""
        parts, scaler, optimizer = self.parts, self.parts.scaler, self.parts.optimizer
        for group in optimizer.param_groups:
            group["lr"] = rates.lr * group.get("lr_multiplier", 1.0)
        parts.weights.grads_to_master()
        scaler.unscale_(optimizer)
        grad_norm = clip_gradients(self.parameters, self.clip_norm, self.clip_value)
        parts.world.sum(sums.losses)
        overflows = scaler.overflows(optimizer)
        # The only place where the program waits for the device.
        loss, nats, norm, *found = _to_host(sums.losses, grad_norm, *overflows)
        if not math.isfinite(loss) or (not math.isfinite(norm) and not scaler.is_enabled()):
            return Finished(Verdict.REFUSED, loss, nats, norm)
        with self.span("optimizer step"):
            with stepping(self.job.optimizer):
                taken = scaler.update_by(optimizer, any(found))
            parts.weights.master_to_params()
            optimizer.zero_grad(set_to_none=True)
        if not taken:  # biases of routers move with the weights, or not at all
            return Finished(Verdict.SKIPPED, loss, nats, norm)
        routing = sums.routing
        if routing is not None:
            routing = balance_experts(parts.model, routing, rates.done, parts.world)
        return Finished(Verdict.TAKEN, loss, nats, norm, routing)


def _to_host(losses: Tensor, *scalars: Tensor) -> list[float]:
    """Bring numbers of several formats to the host in one transfer, exactly."""
    return torch.cat((losses, *(each.to(losses.device).reshape(1) for each in scalars))).tolist()
