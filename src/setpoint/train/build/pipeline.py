"""The pipeline of a job, and its objective where no rank has the whole model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from setpoint.compile.split_backward import backward_pass
from setpoint.loss.forms import LossOutput
from setpoint.parallel.pipeline import Pipeline, Stage
from setpoint.shapes.outcome import Outcome
from setpoint.shapes.scoring import EvalSums
from setpoint.train.step.objective import Objective
from setpoint.units.dtype import DType

if TYPE_CHECKING:
    from setpoint.parallel.world import World
    from setpoint.shapes.batch import Batch
    from setpoint.train.config import Job


def build_pipeline(job: Job, world: World, model: nn.Module, stages: Sequence[Stage]) -> Pipeline:
    """Make what runs the stages of this rank; all ranks call it.

    Arguments:
        model: what this rank holds, with its weights.
    """
    group = world.group("pipeline")
    assert group is not None
    # Autocast leaves the residual stream in the dtype of the weights.
    formats, pipelining = job.precision, job.parallel.pipelining
    dtype = DType(formats.params).torch()
    transfer = DType(pipelining.sent(formats.compute, formats.params)).torch()
    pipeline = Pipeline(
        pipelining,
        stages,
        group,
        world.device,
        dtype,
        transfer,
        job.batch.accumulation,
        nullcontext if job.compile is None else backward_pass,
    )
    pipeline.compare(model)
    return pipeline


class PipelineObjective(Objective):
    """The objective of a model whose stages lie on several ranks, for evaluation.

    All ranks of the pipeline call it with the same batch. Those without the last stage get zeros,
    so that sums over all ranks are those of the batch.

    Arguments:
        model: what this rank holds.
    """

    def __init__(self, model: nn.Module, loss: Any, sources: int, pipeline: Pipeline) -> None:
        super().__init__(model, loss, sources, pipeline.evaluate)
        self.has_last = pipeline.has_last

    def _run(self, batch: Batch, wanted: Tensor | None = None) -> Outcome:
        outcome = super()._run(batch, wanted)
        if self.has_last:
            return outcome
        zero = torch.zeros((), device=batch.inputs.device)
        return Outcome(LossOutput(zero, zero) if wanted is None else EvalSums(zero, zero.long()))
