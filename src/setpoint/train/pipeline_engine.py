"""Engine of a step with pipeline parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from setpoint.loss.cross_entropy import PerToken
from setpoint.parallel.pipeline import Pipeline, Stage, add_loss
from setpoint.shapes.batch import Batch
from setpoint.train.engine import Engine, Sums
from setpoint.train.objective import Objective, add_routing, sum_by_source

if TYPE_CHECKING:
    from setpoint.shapes.batch import Count, StepBatch
    from setpoint.shapes.outcome import Routing
    from setpoint.train.build.components import Components
    from setpoint.train.config import Job


class PipelineEngine(Engine):
    """Runs the micro-batches of a step through the stages of a pipeline, as an `Engine`.

    All ranks of a pipeline read the same batches: what is handed on is the residual stream alone.
    """

    def __init__(self, job: Job, components: Components) -> None:
        super().__init__(job, components)
        assert components.pipeline is not None
        self.pipeline: Pipeline = components.pipeline
        loss, sources = components.objective.loss, self.sources
        self.objectives = {
            stage: Objective(stage.model, loss, sources) for stage in self.pipeline.stages
        }
        # Of matrices that several ranks hold, such as tied embeddings, the norm counts one.
        names, weights = self.pipeline.counted_elsewhere, components.weights.held
        self.counted_elsewhere = frozenset(weights[name] for name in names)

    def forward_backward(self, step: StepBatch, total: Count) -> Sums:
        """See `Engine.forward_backward`."""
        components, scaler = self.components, self.components.scaler
        losses = torch.zeros(2, device=components.device)
        scaler.scale(losses)  # makes its tensors, on ranks without a loss, too
        whole_rows = at_equal_length([batch.to(components.device) for batch in step.batches])
        batches = [components.sequence.cut(batch) for batch in whole_rows]
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
            span = self.span(f"forward of stage {stage.number}")
            with span, self.autocast, self.metrics:
                output, auxiliary, chosen = self.objectives[stage](batch)
            if chosen is not None:
                routing = add_routing(routing, chosen, count.tokens / total.tokens)
            # A mean over the tokens read here, as a share of the mean over all.
            extra = None if auxiliary is None else auxiliary * (count.tokens / total.tokens)
            if not stage.is_last:
                if extra is None:
                    return output
                losses[0] += extra.detach()
                return add_loss(output, scaler.scale(extra))
            share: Tensor = output.total / total.weight
            share = share if extra is None else share + extra
            losses.add_(torch.stack((share.detach(), output.nats / total.targets)))
            if by_source is not None and output.each is not None:
                by_source += sum_by_source(output.each, batches[number], self.sources)
            return scaler.scale(share)

        rows, length = batches[0].inputs.shape
        with self.span("pipeline"), components.replicas.micro_batch(True):
            self.pipeline.run((rows, length), compute)
        self.pipeline.sum_shared()
        return Sums(losses, routing, by_source)


def at_equal_length(batches: Sequence[Batch]) -> list[Batch]:
    """Pad micro-batches at the end to the longest of them; padding does not count.

    Stages exchange tensors of one shape in a step. What is there is not moved, so causal attention
    hides the padding, and where positions are given they mark it for experts.
    """
    length = max(batch.inputs.shape[1] for batch in batches)
    return [batch.padded(length - batch.inputs.shape[1]) for batch in batches]
