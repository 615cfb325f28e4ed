"""The training objective: model and loss as one callable, whole or in pipeline stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from setpoint.config import SetpointError
from setpoint.loss.config import LossConfig, tokens_named
from setpoint.loss.cross_entropy import (
    FromHidden,
    LossOutput,
    PerToken,
    Weighs,
    count_correct,
    count_correct_from_hidden,
)
from setpoint.shapes.batch import IGNORE_INDEX, Count
from setpoint.shapes.outcome import (
    Outcome,
    Routing,
    position_arguments,
    supports_head,
    takes_documents,
)
from setpoint.shapes.scoring import EvalSums
from setpoint.units.dtype import DType

if TYPE_CHECKING:
    from setpoint.parallel.pipeline import Pipeline, Stage
    from setpoint.parallel.world import World
    from setpoint.shapes.batch import Batch
    from setpoint.shapes.outcome import Columns, Projection
    from setpoint.train.config import Job


class Share(NamedTuple):
    """Contribution of a micro-batch to the mean loss of a step.

    Arguments:
        loss: fp32 scalar, the start of the backward pass.
        losses: (2,) fp32 without gradient, shares of the loss and of the cross-entropy.
        routing: routing of its tokens; None for models without experts.
        per_token: (B * S,) the cross-entropy of each token; None if not requested.
    """

    loss: Tensor
    losses: Tensor
    routing: Routing | None
    per_token: Tensor | None


class Objective:
    """Computes the loss of micro-batches, weighted for the mean over a global batch.

    A model that supports a head is called with one, so that the loss can receive hidden states and
    the model can report its additions to the loss. Other models return logits, or an `Outcome` with
    logits.

    Arguments:
        model: maps (B, S) tokens to (B, S, V) logits, given the batch's positions and documents if
            it accepts them.
        loss: called with (logits, targets, weights), or a `FromHidden`. The weights are omitted if
            the data has none; only a `Weighs` accepts them.
        sources: the number of training data sources; with several, the loss returns values per
            token if it can.
        runs: called instead of the model; None: the model.

    Raises:
        SetpointError: the loss needs hidden states, but the model does not provide them.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Any,
        sources: int = 1,
        runs: Callable[..., Any] | None = None,
    ) -> None:
        self.model, self.loss = model, loss
        self.runs = runs or model
        if isinstance(loss, PerToken):
            loss.per_token = sources > 1
        self.has_head = supports_head(model)
        self.takes_documents = takes_documents(model)
        self.from_hidden = isinstance(loss, FromHidden)
        self.weigh = loss.weigh if isinstance(loss, Weighs) else None
        if self.from_hidden and not self.has_head:
            why = getattr(model, "why_no_head", "")
            raise SetpointError(
                f"loss: {type(loss).__name__} needs hidden states, and the model, a "
                f"{type(model).__name__}, returns only logits{why}\n"
                f"Valid: loss.type = cross_entropy, or a model with supports_head = True that "
                f"accepts a head"
            )

    def __call__(self, batch: Batch, counted: Tensor | None = None) -> Outcome:
        """Run the model and its loss on a batch that is on the device.

        Arguments:
            counted: (B, S) targets to look for among the most probable tokens; None: not requested.

        Returns:
            The sums of the loss as a `LossOutput`, with `counted` as an `EvalSums`, and the model's
            additions to them.

        Raises:
            SetpointError: the data has weights but the loss does not accept them, or the data has
                positions or documents but the model does not accept them.
        """
        targets, last = batch.targets, () if batch.weights is None else (batch.weights,)
        places = position_arguments(self.model, batch)

        def of_logits(logits: Tensor, columns: Columns | None = None) -> Any:
            options = {} if columns is None else {"columns": columns}
            output = self.loss(logits, targets, *last, **options)
            if counted is None:
                return output
            return EvalSums(output.nats, count_correct(logits, counted, columns))

        def head(hidden: Tensor, projection: Projection) -> Any:
            if not self.from_hidden:
                return of_logits(projection.logits(hidden), projection.columns)
            output = self.loss.from_hidden(hidden, projection, targets, *last)
            if counted is None:
                return output
            return EvalSums(output.nats, count_correct_from_hidden(hidden, projection, counted))

        if not self.has_head:
            if places and not self.takes_documents:
                raise SetpointError(
                    f"model: {type(self.model).__name__} accepts only tokens, but the data has "
                    f"{' and '.join(places)}\nValid: a model with takes_documents = "
                    f"True, which accepts them"
                )
            output = self.runs(batch.inputs, **places)
            if not isinstance(output, Outcome):
                return Outcome(of_logits(output))
            return output._replace(result=of_logits(output.result))
        return self.runs(batch.inputs, **places, head=head)

    def share(
        self, batch: Batch, weight: float | Tensor, targets: float | Tensor, part: float | Tensor
    ) -> Share:
        """Run the model and its loss on a micro-batch of a step.

        Arguments:
            weight, targets: weight and targets of the global batch, as in `Count`.
            part: this micro-batch's share of the tokens of the mean, times `weight`.

        Raises:
            SetpointError: see `__call__`.
        """
        output, auxiliary, routing = self(batch)
        total = output.total
        if auxiliary is not None:
            # A mean over the tokens read, whether or not their targets count: its share of the mean
            # over all is part of the sum that is divided below.
            total = total + auxiliary * part
        share = total / weight
        losses = torch.stack((share.detach(), output.nats / targets))
        return Share(share, losses, routing, output.per_token)

    def sums(self, batch: Batch) -> LossOutput:
        """Run the model and its loss without anything else.

        Raises:
            SetpointError: see `__call__`.
        """
        return self(batch).result

    def evaluate(self, batch: Batch, valid: Tensor | None = None) -> EvalSums:
        """Run the model once, for its loss and its token accuracy.

        Arguments:
            valid: (B, S) mask of the targets that count, from `count`; None: all targets that are
                not marked as ignored.

        Raises:
            SetpointError: see `__call__`.
        """
        # The loss itself ignores targets that do not count.
        counted = batch.targets
        if valid is not None:
            counted = counted.where(valid.to(counted.device), IGNORE_INDEX)
        return self(batch, counted).result

    def count(self, batch: Batch) -> Count:
        """Count tokens, targets and their weight, which divides the loss of a batch.

        Raises:
            SetpointError: the data has weights but the loss does not accept them, or a weight is
                negative or not a number.
        """
        weights = batch.weights
        if weights is None and (self.weigh is None or self.weigh.is_trivial):
            return Count(batch.tokens, batch.target_tokens, float(batch.target_tokens))
        if self.weigh is None:
            raise SetpointError(
                f"loss: {type(self.loss).__name__} does not support token weights, but the data "
                f"has them\nValid: "
                f"loss.type = cross_entropy or chunked_cross_entropy"
            )
        if weights is not None and not bool(((weights >= 0) & weights.isfinite()).all()):
            raise SetpointError(
                f"data: the weights of a batch lie between {weights.min():g} and "
                f"{weights.max():g}; they must be finite and >= 0"
            )
        targets, weights = self.weigh(batch.targets, weights)
        valid = targets != IGNORE_INDEX
        count = int(valid.sum())
        weight = count if weights is None else weights[valid].sum(dtype=torch.float64)
        return Count(batch.tokens, count, float(weight), valid)


def sum_by_source(per_token: Tensor, batch: Batch, sources: int) -> Tensor:
    """(sources,) fp64 sums over each source's targets, without waiting for the device.

    The order of summation does not depend on the device, unlike that of `index_add_` on a GPU.

    Arguments:
        per_token: (B * S,), 0 if a target does not count.
        batch: the batch, with its sources on the host.
    """
    source = batch.source if batch.sources is None else batch.sources.flatten()
    assert source is not None
    values = per_token.double().view(len(source), -1).sum(dim=1)
    order = source.argsort(stable=True).to(per_token.device, non_blocking=True)
    lengths = source.bincount(minlength=sources).to(per_token.device, non_blocking=True)
    # `unsafe` skips a check of the lengths, for which the host would wait.
    return torch.segment_reduce(values[order], "sum", lengths=lengths, unsafe=True)


def add_routing(before: Routing | None, routing: Routing, share: float) -> Routing:
    """Accumulate the routing of a micro-batch.

    Arguments:
        before: the sum so far; None: nothing yet.
        share: the micro-batch's fraction of all tokens in the batch, for values that are means over
            tokens.
    """
    counts, dropped, *means = routing
    new = Routing(counts, dropped, *(mean * share for mean in means))
    return new if before is None else Routing(*(a + b for a, b in zip(before, new, strict=True)))


def require_tokens(loss: LossConfig, vocab_size: int) -> None:
    """Refuse a loss that names tokens missing from the tokenizer.

    Raises:
        SetpointError: names the missing token and the existing ones.
    """
    for field, token in tokens_named(loss):
        if token >= vocab_size:
            raise SetpointError(
                f"{field}: the tokenizer has no token {token}: its vocabulary is {vocab_size}\n"
                f"Valid: 0 to {vocab_size - 1}"
            )


def build_pipeline(job: Job, world: World, model: nn.Module, stages: Sequence[Stage]) -> Pipeline:
    """Build the pipeline of this rank's stages; all ranks must call it.

    Arguments:
        model: the part on this rank, with its weights.
    """
    from setpoint.compile.split_backward import backward_pass
    from setpoint.parallel.pipeline import Pipeline

    group = world.group("pipeline")
    assert group is not None
    # With autocast the residual stream keeps the dtype of the weights.
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
        nullcontext if job.compile is None else backward_pass,
    )
    pipeline.compare(model)
    return pipeline


class PipelineObjective(Objective):
    """Objective of a pipeline-parallel model, for evaluation.

    All ranks of the pipeline call it with the same batch. Ranks without the last stage return
    zeros, so that sums over all ranks equal those of the batch.

    Arguments:
        model: the part on this rank.
    """

    def __init__(self, model: nn.Module, loss: Any, sources: int, pipeline: Pipeline) -> None:
        super().__init__(model, loss, sources, pipeline.evaluate)
        self.has_last = pipeline.has_last

    def __call__(self, batch: Batch, counted: Tensor | None = None) -> Outcome:
        """See `Objective.__call__`."""
        outcome = super().__call__(batch, counted)
        if self.has_last:
            return outcome
        zero = torch.zeros((), device=batch.inputs.device)
        return Outcome(LossOutput(zero, zero) if counted is None else EvalSums(zero, zero.long()))
