"""Step engines: gradients of the global mean, one all-reduce, the verdict and the update."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from setpoint.config import RunError, SetpointError, error_in_words
from setpoint.loss.cross_entropy import PerToken
from setpoint.memory.usage import is_out_of_memory
from setpoint.model.config import ModelConfig, TransformerConfig
from setpoint.optim.clip import clip_gradients
from setpoint.optim.config import OptimizerConfig
from setpoint.optim.optimizer import Undo, counts_of, step_unless, takes_flag, title_of
from setpoint.parallel.determinism import explain as explain_determinism
from setpoint.precision.mixed_precision import compute_in
from setpoint.shapes.batch import BySource
from setpoint.shapes.logged import MetricLog
from setpoint.shapes.outcome import Routing
from setpoint.train.objective import Objective, add_routing, sum_by_source
from setpoint.train.rules.run_rules import memory_suggestions
from setpoint.train.verdict import StepResult, Verdict, judge, skip_flag

if TYPE_CHECKING:
    from setpoint.parallel.pipeline import Stage
    from setpoint.parallel.replica_groups import ReplicaGroups
    from setpoint.shapes.batch import Count, StepBatch
    from setpoint.shapes.logged import Logged
    from setpoint.train.build.components import Components
    from setpoint.train.config import Job
    from setpoint.train.row_metrics import NormMetrics


class Sums(NamedTuple):
    """Sums over the forward passes of a step, not yet synchronized with the host.

    Arguments:
        losses: (2,) fp32, this rank's shares of the loss and of the cross-entropy.
        routing: routing of this rank's tokens; None without experts.
        by_source: (sources,) fp64, sums of this rank's cross-entropy; None if unknown.
    """

    losses: Tensor
    routing: Routing | None
    by_source: Tensor | None = None


class Rates(NamedTuple):
    """Schedule values for a step.

    Arguments:
        lr: the learning rate, before the multipliers of groups.
        done: completed fraction of the run after the step, for the bias rate of routers.
        frozen: names of the parameters that this step does not change.
    """

    lr: float
    done: float
    frozen: frozenset[str] = frozenset()


CompleteStep = Callable[[], StepResult]
"""Waits for the numbers of a step, judges it, and undoes the optimizer counts of a bad one.

Repeated calls return the same result.
"""


def complete_retaken() -> StepResult:
    """The `CompleteStep` of a step during which a replica group was lost."""
    return StepResult(Verdict.RETAKEN)


class Engine:
    """Runs the steps of a loop, each with one `forward_backward` and one `update`.

    This class supports data, sharded and tensor parallelism.

    Arguments:
        span: measures the parts of a step, and names them in the traces of a profiler.
        norms: measures gradients, weights and updates; None: not measured.
        metrics: collects the metrics logged by the model and the loss.
        is_ahead: whether the device decides on updates before the host has the numbers.
        counted_elsewhere: parameters that another rank includes in the norm.
        to_host: starts copying numbers to the host, and returns a function that waits for them.
    """

    def __init__(self, job: Job, components: Components) -> None:
        self.job, self.components = job, components
        self.span: Callable[[str], AbstractContextManager[Any]] = nullcontext
        self.norms: NormMetrics | None = None
        self.metrics = MetricLog()
        self.device = components.device
        self.divides_sequences = components.sequence.size > 1
        formats = job.precision
        self.autocast = compute_in(formats.compute, formats.params, self.device)
        # None without scaling, which only fp16 needs.
        self.scaler = components.scaler if components.scaler.is_enabled() else None
        self.is_graph = job.compile is not None and job.compile.scope == "graph"
        self.parameters = components.weights.parameters()
        self.counted_elsewhere: frozenset[Tensor] = frozenset()
        self.stages = components.world.group("pipeline")
        self.sources = len(components.train_data.sources)
        self.to_host: Callable[[Tensor], Callable[[], list[float]]] = HostCopy()
        self.is_ahead = (
            takes_flag(components.optimizer)
            and job.parallel.torchft is None
            and components.spikes is None
            and not components.non_finite.rolls_back
        )

    def forward_backward(self, step: StepBatch, total: Count) -> Sums:
        """Compute the gradients of the mean over the global batch.

        Arguments:
            total: counts of the step on all ranks.
        """
        components, device = self.components, self.device
        losses, routing = torch.zeros(2, device=device), None
        by_source: Tensor | None = None
        noise = components.embedding_noise
        for number, (host_batch, count) in enumerate(
            zip(step.batches, step.counts, strict=True), 1
        ):
            batch = host_batch.to(device)
            if self.divides_sequences:
                batch = components.sequence.cut(batch)
            if noise is not None:
                noise.values = noise.draw(host_batch, batch.inputs.shape[1])
            weight_share = total.weight * count.tokens / total.tokens
            divisors: Sequence[float | Tensor] = (total.weight, total.targets, weight_share)
            if self.is_graph:  # which takes tensors, for any values
                numbers = torch.tensor(divisors)
                divisors = numbers.to(device, non_blocking=True).unbind()
            with components.replicas.micro_batch(number == len(step.batches)):
                with self.span("forward"), self.autocast, self.metrics:
                    loss, parts, chosen, per_token = components.objective.share(batch, *divisors)
                with self.span("backward"):
                    self.backward(loss)
            losses += parts
            if chosen is not None:
                routing = add_routing(routing, chosen, count.tokens / total.tokens)
            if per_token is not None and batch.source is not None:
                sums = sum_by_source(per_token, batch, self.sources)
                by_source = sums if by_source is None else by_source + sums
        return Sums(losses, routing, by_source)

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradients of a micro-batch.

        Not called with a pipeline, whose schedule runs the backward pass; see
        `setpoint.parallel.pipeline`.
        """
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def update(self, sums: Sums, rates: Rates) -> CompleteStep:
        """Clip, step the optimizer and update router biases, unless the numbers are bad.

        One all-reduce sums the numbers of all ranks. If `is_ahead`, the device uses the sums to
        decide, and the host does not wait.

        Returns:
            a function that returns the result, which is equal on all ranks except for the norm,
            where only its finiteness is shared. Call the function before the next update; it raises
            a RunError if the loss scale has become too small.

        Raises:
            RunError: an imported optimizer fails.
        """
        components, scaler, section = self.components, self.scaler, self.job.optimizer
        optimizer, weights = components.optimizer, components.weights
        for group in optimizer.param_groups:
            group["lr"] = rates.lr * group.get("lr_multiplier", 1.0)
        if weights.pairs:
            weights.grads_to_master()
        if components.replica_groups is not None:
            with self.span("communication"):
                if sums.routing is None:
                    sums = sums._replace(routing=no_routing(self.job.model, components.device))
                sums = sum_over_groups(
                    components.replica_groups, self.parameters, sums, self.sources
                )
        for name in rates.frozen & weights.by_name.keys():
            weights.by_name[name].grad = None
        if scaler is not None:
            scaler.unscale_(optimizer)
        if self.norms is not None:
            self.norms.gradients()
        with self.span("clip"):
            grad_norm = clip_gradients(
                self.parameters,
                section.clip_norm,
                section.clip_value,
                self.stages,
                self.counted_elsewhere,
            )
        if components.replica_groups is not None and not components.replica_groups.commits():
            if scaler is not None:
                scaler.update()
            optimizer.zero_grad(set_to_none=True)
            if self.norms is not None:
                self.norms.drop_step()
            return complete_retaken
        overflows = () if scaler is None else scaler.overflows(optimizer)
        numbers = self._gather(sums, grad_norm, overflows)
        numbers.undo = counts_of(optimizer, numbers.skip)
        if self.is_ahead or numbers.complete().verdict is Verdict.TAKEN:
            with self.span("optimizer step"):
                try:
                    step_unless(numbers.skip if self.is_ahead else None, optimizer)
                except Exception as error:
                    raise_named(error, section)
                if weights.pairs:
                    weights.master_to_params()
            if numbers.routing is not None:
                from setpoint.model.moe.layer import update_biases

                counts, skip = numbers.routing.counts, numbers.skip
                update_biases(components.model, counts, rates.done, rates.frozen, skip)
        if self.norms is not None and (self.is_ahead or numbers.complete().policy is None):
            self.norms.updated()
        if scaler is not None:
            scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return numbers.complete

    def _gather(self, sums: Sums, norm: Tensor, overflows: Sequence[Tensor] = ()) -> StepNumbers:
        """All-reduce the numbers of the step, and start copying them to the host.

        A loss or norm that is not finite on one rank is so on all, which judge the step alike.
        """
        world, scaler = self.components.world, self.scaler
        losses, routing, by_source = sums.losses.double(), sums.routing, sums.by_source
        broken = (~norm.isfinite()).to(losses.device)
        overflowed = sum(overflows, start=torch.zeros((), device=losses.device)) > 0
        if world.size > 1:
            shared = [losses] if by_source is None else [losses, by_source]
            chosen = None if routing is None else routing.flat()
            if not world.gives_loss:  # another rank has the same
                shared = [torch.zeros_like(part) for part in shared]
                chosen = None if chosen is None else torch.zeros_like(chosen)
            shared += [broken.reshape(1), overflowed.reshape(1)]
            shared += [] if chosen is None else [chosen]
            flat = torch.cat(shared)
            with self.span("communication"):
                world.sum(flat)
            losses, *parts = flat.split([len(part) for part in shared])
            if routing is not None:
                routing = routing.from_flat(parts.pop())
            by_source = parts.pop(0) if by_source is not None else None
            broken, overflowed = (flag[0] > 0 for flag in parts)
            for flag in overflows:  # which control the loss scale
                flag.copy_(overflowed)
        scale = [] if scaler is None else [scaler.scale(torch.ones((), device=losses.device))]
        logged = self.metrics.cut() if self.metrics else None
        singles = [*scale, norm, broken, overflowed, *(() if logged is None else logged.on_device)]
        numbers = [losses, *(() if by_source is None else (by_source,))]
        numbers += [single.to(losses.device).reshape(1) for single in singles]
        read = self.to_host(torch.cat([number.double() for number in numbers]))
        sources = 0 if by_source is None else len(by_source)
        skip = skip_flag(losses, broken, overflowed, scaler is not None)
        return StepNumbers(self, skip, routing, logged, sources, read)


@dataclass(slots=True, eq=False)
class StepNumbers:
    """Numbers of a step over all ranks, in transit to the host; the norm is this rank's own.

    Arguments:
        skip: see `verdict.skip_flag`.
        logged: metrics logged so far; None if there are none.
        sources: number of sums by source.
        read: waits for loss, cross-entropy, sources, norm and so on.
        undo: reverts the step in the host-side counters of the optimizer.
        result: the result of `complete`.
    """

    engine: Engine
    skip: Tensor
    routing: Routing | None
    logged: Logged | None
    sources: int
    read: Callable[[], list[float]]
    undo: Undo | None = None
    result: StepResult | None = None

    def complete(self) -> StepResult:
        """Read the numbers, judge the step, and count it on the host; see `CompleteStep`."""
        if self.result is not None:
            return self.result
        engine, components = self.engine, self.engine.components
        with engine.span("device"):
            loss, nats, *values = self.read()
        by_source, values = values[: self.sources], values[self.sources :]
        scaled = engine.scaler is not None
        scale = values.pop(0) if scaled else 1.0
        norm, broken, overflowed, *logged = values
        if self.logged is not None:
            engine.metrics.settle(self.logged, logged)
        verdict, policy = judge(
            loss, broken > 0, overflowed > 0, scaled, components.non_finite, components.spikes
        )
        taken = verdict is Verdict.TAKEN
        routing, sums = self.routing if taken else None, BySource(nats=tuple(by_source))
        self.result = StepResult(verdict, loss, nats, norm, policy, routing, sums)
        if not taken:
            if self.undo is not None:
                self.undo()
            if policy is None:
                components.scaler.skip(scale)
            elif engine.norms is not None:
                engine.norms.drop_step()
        return self.result


class HostCopy:
    """Asynchronous copier of numbers to the host, with one reused buffer.

    Read each copy before starting the next one.
    """

    def __init__(self) -> None:
        self.numbers: Tensor | None = None
        self.view: Any = None

    def __call__(self, numbers: Tensor) -> Callable[[], list[float]]:
        """Start a copy.

        Arguments:
            numbers: (N,) fp64.

        Returns:
            a function that waits for the numbers.
        """
        count, on_gpu = len(numbers), numbers.device.type == "cuda"
        if self.numbers is None or count > len(self.numbers):
            # Otherwise the host would wait for the copy; allocating such memory waits for the
            # device.
            self.numbers = torch.empty(2 * count, dtype=torch.float64, pin_memory=on_gpu)
            self.view = self.numbers.numpy()
        self.numbers[:count].copy_(numbers, non_blocking=on_gpu)
        view = self.view[:count]
        arrived = torch.cuda.Event() if on_gpu else None
        if arrived is not None:
            arrived.record()

        def read() -> list[float]:
            if arrived is not None:
                arrived.synchronize()
            return view.tolist()

        return read


class PipelineEngine(Engine):
    """Runs the micro-batches of a step through the stages of a pipeline, as an `Engine`.

    All ranks of a pipeline read the same batches, since stages pass on only the residual stream.
    """

    def __init__(self, job: Job, components: Components) -> None:
        super().__init__(job, components)
        assert components.pipeline is not None
        self.pipeline = components.pipeline
        loss, sources = components.objective.loss, self.sources
        self.objectives = {
            stage: Objective(stage.model, loss, sources) for stage in self.pipeline.stages
        }
        # The norm counts matrices that several ranks have, such as tied embeddings, once.
        names, weights = self.pipeline.counted_elsewhere, components.weights.by_name
        self.counted_elsewhere = frozenset(weights[name] for name in names)

    def forward_backward(self, step: StepBatch, total: Count) -> Sums:
        """See `Engine.forward_backward`."""
        from setpoint.parallel.pipeline import add_loss

        components, scaler = self.components, self.components.scaler
        losses = torch.zeros(2, device=components.device)
        scaler.scale(losses)  # creates its tensors, on ranks without a loss, too
        # Stages exchange tensors of one shape, so shorter micro-batches are padded at the end:
        # causal attention hides the padding, and positions, if given, mark it for experts.
        length = max(batch.inputs.shape[1] for batch in step.batches)
        batches = [
            components.sequence.cut(
                batch.to(components.device).padded(length - batch.inputs.shape[1])
            )
            for batch in step.batches
        ]
        noise, length = components.embedding_noise, batches[0].inputs.shape[1]
        routing: Routing | None = None
        by_source: Tensor | None = None
        loss = components.objective.loss
        if isinstance(loss, PerToken) and loss.per_token and batches[0].source is not None:
            by_source = torch.zeros(self.sources, dtype=torch.float64, device=components.device)

        def compute(stage: Stage, number: int, x: Tensor | None) -> Tensor:
            nonlocal routing, by_source
            batch, count = batches[number], step.counts[number]
            if x is not None:
                batch = replace(batch, inputs=x)
            elif noise is not None:
                noise.values = noise.draw(step.batches[number], length)
            span = self.span(f"forward of stage {stage.number}")
            with span, self.autocast, self.metrics:
                output, auxiliary, chosen = self.objectives[stage](batch)
            if chosen is not None:
                routing = add_routing(routing, chosen, count.tokens / total.tokens)
            # A mean over the tokens of this micro-batch, as a share of the mean over all.
            extra = None if auxiliary is None else auxiliary * (count.tokens / total.tokens)
            if not stage.is_last:
                if extra is None:
                    return output
                losses[0] += extra.detach()
                return add_loss(output, scaler.scale(extra))
            share: Tensor = output.total / total.weight
            share = share if extra is None else share + extra
            losses.add_(torch.stack((share.detach(), output.nats / total.targets)))
            if by_source is not None and output.per_token is not None:
                by_source += sum_by_source(output.per_token, batches[number], self.sources)
            return scaler.scale(share)

        rows, length = batches[0].inputs.shape
        with self.span("pipeline"), components.replicas.micro_batch(True):
            self.pipeline.run((rows, length), len(batches), compute)
        self.pipeline.sum_shared()
        return Sums(losses, routing, by_source)


@torch.no_grad()
def sum_over_groups(
    groups: ReplicaGroups, weights: Sequence[Tensor], sums: Sums, sources: int
) -> Sums:
    """Sum the gradients, in place, and the sums of a step over all replica groups.

    Arguments:
        sums: with experts, they include routing, even without a micro-batch.
    """
    for weight in weights:
        if weight.grad is None:  # in a group without a micro-batch in this step
            weight.grad = torch.zeros_like(weight)
    for dtype in dict.fromkeys(weight.dtype for weight in weights):  # the same order on all ranks
        groups.sum([w.grad for w in weights if w.dtype == dtype and w.grad is not None])
    losses, routing, by_source = sums
    if sources > 1 and by_source is None:
        by_source = torch.zeros(sources, dtype=torch.float64, device=losses.device)
    parts = [
        losses.double(),
        *([] if by_source is None else [by_source]),
        *([] if routing is None else [routing.flat()]),
    ]
    flat = torch.cat(parts)
    groups.sum([flat])
    first, *tail = flat.split([len(part) for part in parts])
    return Sums(
        first.to(losses.dtype),
        None if routing is None else routing.from_flat(tail[-1]),
        None if by_source is None else tail[0],
    )


def no_routing(model: ModelConfig, device: torch.device) -> Routing | None:
    """Routing of zero tokens; None without experts."""
    moe = model.moe if isinstance(model, TransformerConfig) else None
    if moe is None:
        return None
    assert isinstance(model, TransformerConfig)
    layers = sum(moe.has_experts(layer) for layer in range(model.layers))
    counts = torch.zeros(layers, moe.experts, dtype=torch.int64, device=device)
    mean = torch.zeros((), device=device)
    return Routing(counts, counts[:, 0], mean, mean, mean)


@contextmanager
def explain_oom(job: Job) -> Iterator[None]:
    """Replace out-of-memory errors with one that includes advice.

    Raises:
        RunError: replaces out-of-memory errors of Python, NumPy and PyTorch.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        batch = job.batch
        raise RunError(
            f"there is not enough memory for batch.micro_size = {batch.micro_size} sequences of "
            f"batch.sequence_length = {batch.sequence_length} tokens with this model and data. "
            f"What helps: {'; '.join([*memory_suggestions(job), 'less data'])}"
        ) from error


def explain(error: Exception) -> RunError | None:
    """Explain a PyTorch error by the setting that causes it.

    Returns:
        an error with advice; None if the cause is unknown.
    """
    from setpoint.compile.watch import explain as explain_compiling

    # Compilers wrap the error that an operation cannot be deterministic in one of their own.
    return explain_determinism(error) or explain_compiling(error)


def raise_named(error: Exception, config: OptimizerConfig) -> NoReturn:
    """Re-raise an error from an optimizer step, with the name of an imported optimizer.

    Raises:
        RunError: unless the error is about memory or has its own explanation.
    """
    title = None if isinstance(error, SetpointError) else title_of(config)
    if title is None or is_out_of_memory(error) or explain(error) is not None:
        raise error
    raise RunError(f"{title} failed in its step: {error_in_words(error)}") from error
