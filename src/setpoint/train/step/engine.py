"""The engine of a step: gradients of the global mean, and what is done with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from setpoint.model.moe.layer import update_biases
from setpoint.optim.clip import clip_gradients
from setpoint.precision.autocast import compute_in
from setpoint.shapes.outcome import Routing
from setpoint.train.step.bad_steps import Verdict
from setpoint.train.step.errors import stepping
from setpoint.train.step.objective import Share, add_routing, sum_by_source

if TYPE_CHECKING:
    from setpoint.parallel.replica_groups import ReplicaGroups
    from setpoint.shapes.batch import Batch, Count, StepBatch
    from setpoint.shapes.logged import MetricLog
    from setpoint.train.build.components import Components
    from setpoint.train.config import Job
    from setpoint.train.step.norms import NormMetrics


class Sums(NamedTuple):
    """What the forward passes of a step gave; nothing of it was waited for.

    Arguments:
        losses: (2,) fp32, this rank's shares of the loss and of the cross-entropy.
        routing: how the tokens of this rank chose experts; None for models without.
        by_source: (sources,) fp64, sums of this rank's cross-entropy; None: not known.
    """

    losses: Tensor
    routing: Routing | None
    by_source: Tensor | None = None


class Rates(NamedTuple):
    """What schedules say of a step.

    Arguments:
        lr: the learning rate, before the multipliers of groups.
        done: how much of the run is done after the step, for the bias rate of routers.
        frozen: the names of parameters that this step leaves as they are.
    """

    lr: float
    done: float
    frozen: frozenset[str] = frozenset()


class Report(NamedTuple):
    """What a rank tells the others in the collective of a step.

    Arguments:
        stop: whether it was asked to stop.
        save: whether it was asked to save a checkpoint and go on.
        seconds: that it spent since its last report.
        logs: whether its code has logged metrics since the last row.
    """

    stop: bool = False
    save: bool = False
    seconds: float = 0.0
    logs: bool = False


NOTHING = Report()


@dataclass(frozen=True, slots=True)
class Finished:
    """How a step ended.

    Arguments:
        loss, nats: means over the global batch.
        grad_norm: global norm of the gradients before clipping.
        stop, save, logs: whether any rank was asked to, or has logged metrics.
        seconds: the mean of what the ranks reported.
        routing: how the tokens of all ranks chose experts; None unless the step was taken.
        by_source: sums of the cross-entropy over the global batch; empty where not known.
        logged: the values of `MetricLog.on_device`.
    """

    verdict: Verdict
    loss: float
    nats: float
    grad_norm: float
    stop: bool = False
    save: bool = False
    seconds: float = 0.0
    logs: bool = False
    routing: Routing | None = None
    by_source: tuple[float, ...] = ()
    logged: Sequence[float] = ()


class Engine(Protocol):
    """Takes the steps of a loop, one `forward_backward` and one `finish` each.

    Arguments:
        span: measures the parts of a step, and names them in the traces of a profiler.
        norms: measures gradients, weights and updates; None: nothing does.
        metrics: collects what the model and the loss log; None: nothing does.
    """

    span: Callable[[str], AbstractContextManager[Any]]
    norms: NormMetrics | None
    metrics: MetricLog | None

    def forward_backward(self, step: StepBatch, whole: Count) -> Sums:
        """Compute the gradients of the mean over the whole global batch.

        Arguments:
            whole: what the step counts on all ranks.
        """
        ...

    def finish(self, sums: Sums, rates: Rates, report: Report = NOTHING) -> Finished:
        """Clip, let the optimizer step, and move the biases of routers.

        All ranks get the same answer, but for the norm, of which only whether it is finite is
        shared: one collective, in which the report takes part, and one wait for the device.

        Raises:
            RunError: an optimizer of the user's own fails, or no scale of the loss is of use.
        """
        ...


class PlainEngine:
    """One process that holds the whole model, as an `Engine`."""

    def __init__(self, job: Job, parts: Components) -> None:
        self.job, self.parts = job, parts
        self.span: Callable[[str], AbstractContextManager[Any]] = nullcontext
        self.norms: NormMetrics | None = None
        self.metrics: MetricLog | None = None
        self.clip_norm = job.optimizer.clip_norm
        self.clip_value = job.optimizer.clip_value
        self.is_graph = job.compile is not None and job.compile.scope == "graph"
        self.parameters = parts.weights.parameters()
        self.elsewhere: frozenset[Tensor] = frozenset()
        """Those that the norm counts on another rank."""
        self.stages = parts.world.group("pipeline")
        self.sources = len(parts.train.sources)
        self.to_host = to_host
        """Reads numbers of the device, for which it waits."""

    def forward_backward(self, step: StepBatch, whole: Count) -> Sums:
        """See `Engine.forward_backward`."""
        losses, routing = torch.zeros(2, device=self.parts.device), None
        by_source: Tensor | None = None
        for number, (batch, count) in enumerate(zip(step.batches, step.counts, strict=True), 1):
            batch = self.parts.sequence.cut(batch.to(self.parts.device))
            with self.parts.replicas.micro_batch(last=number == len(step.batches)):
                _, share, chosen, each = self._backward(batch, count, whole)
            losses += share
            if chosen is not None:
                routing = add_routing(routing, chosen, count.tokens / whole.tokens)
            if each is not None and batch.source is not None:
                found = sum_by_source(each, batch, self.sources)
                by_source = found if by_source is None else by_source + found
        return Sums(losses, routing, by_source)

    def _backward(self, batch: Batch, count: Count, whole: Count) -> Share:
        """Forward and backward of one micro-batch; gradients add up."""
        parts, formats = self.parts, self.job.precision
        computing = compute_in(formats.compute, formats.params, parts.device)
        numbers = self._numbers(count, whole)
        with self.span("forward"), computing, collecting(self.metrics):
            share = parts.objective.share(batch, *numbers)
        with self.span("backward"):
            parts.scaler.scale(share.loss).backward()
        return share

    def _numbers(self, count: Count, whole: Count) -> Sequence[float | Tensor]:
        """What `Objective.share` divides by; a graph takes it as tensors, for any values."""
        numbers = (whole.weight, whole.targets, whole.weight * count.tokens / whole.tokens)
        if not self.is_graph:
            return numbers
        return torch.tensor(numbers).to(self.parts.device, non_blocking=True).unbind()

    def finish(self, sums: Sums, rates: Rates, report: Report = NOTHING) -> Finished:
        """See `Engine.finish`."""
        parts, scaler, optimizer = self.parts, self.parts.scaler, self.parts.optimizer
        for group in optimizer.param_groups:
            group["lr"] = rates.lr * group.get("lr_multiplier", 1.0)
        parts.weights.grads_to_master()
        if parts.groups is not None:
            with self.span("communication"):
                sums = sum_over_groups(parts.groups, self.parameters, sums, self.sources)
        for name in rates.frozen & parts.weights.held.keys():
            parts.weights.held[name].grad = None
        scaler.unscale_(optimizer)
        if self.norms is not None:
            self.norms.gradients()
        with self.span("clip"):
            grad_norm = clip_gradients(
                self.parameters, self.clip_norm, self.clip_value, self.stages, self.elsewhere
            )
        found = self._agree(sums, grad_norm, scaler.overflows(optimizer), report)
        answer = found.ended(Verdict.TAKEN)
        if parts.groups is not None and not parts.groups.commits():
            scaler.pass_over()
            optimizer.zero_grad(set_to_none=True)
            return replace(answer, verdict=Verdict.RETAKEN)
        if not math.isfinite(found.loss) or (found.is_broken and not scaler.is_enabled()):
            scaler.pass_over()
            optimizer.zero_grad(set_to_none=True)
            return replace(answer, verdict=Verdict.REFUSED)
        if parts.spikes is not None and parts.spikes.acts_on(found.loss):
            scaler.pass_over()
            optimizer.zero_grad(set_to_none=True)
            return replace(answer, verdict=Verdict.SPIKED)
        with self.span("optimizer step"):
            with stepping(self.job.optimizer):
                taken = scaler.update_by(optimizer, found.overflows)
            if self.norms is not None:
                self.norms.updated()
            parts.weights.master_to_params()
            optimizer.zero_grad(set_to_none=True)
        if not taken:  # biases of routers move with the weights, or not at all
            return replace(answer, verdict=Verdict.SKIPPED)
        if found.routing is not None:
            update_biases(parts.model, found.routing.counts, rates.done, rates.frozen)
        return replace(answer, routing=found.routing)

    def _agree(self, sums: Sums, norm: Tensor, overflows: list[Tensor], report: Report) -> _Agreed:
        """Bring the numbers of a step to the host, those of all ranks where there are several."""
        world, (losses, routing, by_source) = self.parts.world, sums
        on_device = [] if self.metrics is None else self.metrics.on_device
        sources = 0 if by_source is None else len(by_source)
        if world.size == 1:
            numbers = losses if by_source is None else torch.cat((losses, by_source))
            with self.span("device"):
                loss, nats, *found = self.to_host(numbers, norm, *overflows, *on_device)
            own, rest = found[sources], found[sources + 1 :]
            broken, over = not math.isfinite(own), any(rest[: len(overflows)])
            by, logged = found[:sources], rest[len(overflows) :]
            return _Agreed(loss, nats, own, broken, over, *report, by, routing, logged)
        told = torch.tensor(report, dtype=torch.float64, device=losses.device)
        broken = (~norm.isfinite()).to(losses.device)
        over = sum(overflows, start=torch.zeros((), device=losses.device)) > 0
        own = [losses.double()] if by_source is None else [by_source, losses.double()]
        chosen = None if routing is None else numbers_of(routing)
        if not world.gives_loss:  # another rank has the same
            own = list(map(torch.zeros_like, own))
            chosen = None if chosen is None else torch.zeros_like(chosen)
        numbers = [*own, told, broken.reshape(1), over.reshape(1)]
        shared = torch.cat(numbers if chosen is None else [*numbers, chosen])
        with self.span("communication"):
            world.sum(shared)
        if routing is not None and chosen is not None:
            shared, chosen = shared.split((len(shared) - len(chosen), len(chosen)))
            routing = routing_of(chosen, routing)
        for flag in overflows:  # by which the scale of the loss follows
            flag.copy_(shared[-1] > 0)
        with self.span("device"):
            found = self.to_host(shared, norm, *on_device)
        loss, nats, stop, save, seconds, logs, broken, over, own_norm, *logged = found[sources:]
        agreed = Report(stop > 0, save > 0, seconds / world.size, logs > 0)
        return _Agreed(
            loss, nats, own_norm, broken > 0, over > 0, *agreed, found[:sources], routing, logged
        )


@torch.no_grad()
def sum_over_groups(
    groups: ReplicaGroups, weights: Sequence[Tensor], sums: Sums, sources: int
) -> Sums:
    """Add up gradients, in place, and what a step gave, over all replica groups."""
    for weight in weights:
        if weight.grad is None:  # of a group without a micro-batch in this step
            weight.grad = torch.zeros_like(weight)
    for kind in dict.fromkeys(weight.dtype for weight in weights):  # in one order everywhere
        groups.sum([w.grad for w in weights if w.dtype == kind and w.grad is not None])
    by_source = sums.by_source
    if sources > 1 and by_source is None:
        by_source = torch.zeros(sources, dtype=torch.float64, device=sums.losses.device)
    own = (sums.losses.double(), *(() if by_source is None else (by_source,)))
    together = torch.cat(own)
    groups.sum([together])
    losses = together[:2].to(sums.losses.dtype)
    return Sums(losses, sums.routing, None if by_source is None else together[2:])


def numbers_of(routing: Routing) -> Tensor:
    """(N,) fp64, all of a routing in one tensor; whole numbers are exact up to 2**53."""
    return torch.cat([each.double().flatten() for each in routing])


def routing_of(numbers: Tensor, like: Routing) -> Routing:
    """The routing whose numbers these are.

    Arguments:
        like: has its shapes and dtypes.
    """
    parts = numbers.split([each.numel() for each in like])
    return Routing(
        *(part.view(each.shape).to(each.dtype) for part, each in zip(parts, like, strict=True))
    )


class _Agreed(NamedTuple):
    """What all ranks know of a step; `norm` is this rank's own."""

    loss: float
    nats: float
    norm: float
    is_broken: bool
    overflows: bool
    stop: bool
    save: bool
    seconds: float
    logs: bool
    by_source: list[float]
    routing: Routing | None
    logged: list[float]

    def ended(self, verdict: Verdict) -> Finished:
        """How the step ended, as far as no bias of a router has moved."""
        return Finished(
            verdict, self.loss, self.nats, self.norm, self.stop, self.save, self.seconds, self.logs,
            by_source=tuple(self.by_source), logged=self.logged,
        )  # fmt: skip


def collecting(metrics: MetricLog | None) -> AbstractContextManager[None]:
    """Collect what is logged in a forward pass."""
    return nullcontext() if metrics is None else metrics


def to_host(first: Tensor, *scalars: Tensor) -> list[float]:
    """Bring numbers of several formats to the host in one transfer, exactly.

    It is the only place where a step waits for the device.
    """
    return torch.cat((first, *(each.to(first.device).reshape(1) for each in scalars))).tolist()
