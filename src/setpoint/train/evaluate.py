"""Judging a model on held-out text."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from setpoint.config import RunError
from setpoint.data.corpus import Corpus
from setpoint.data.evaluation import evaluation_batches
from setpoint.data.windows import Batch
from setpoint.model.mode import evaluating
from setpoint.parallel.precision import compute_in
from setpoint.train.build import Parts
from setpoint.train.config import Job
from setpoint.train.objective import Count


@dataclass(frozen=True, slots=True)
class Score:
    """How well a model predicts held-out text.

    Arguments:
        loss: mean cross-entropy over the tokens that count, in nats, whatever is minimized.
        bits_per_byte: all bits, those of separators too, over the bytes of the text; of what
            counts.
        tokens: tokens that were predicted and count.
    """

    loss: float
    bits_per_byte: float
    tokens: int


def evaluate(job: Job, parts: Parts) -> Score:
    """Judge the model on the held-out side, the same sequences each time.

    Arguments:
        job: the resolved configuration; its evaluation is not null.
        parts: the objects of the job; nothing of their state changes.

    Returns:
        the score.

    Raises:
        RunError: none of the targets counts.
    """
    assert job.evaluation is not None
    nats, tokens, size = 0.0, 0, 0
    with evaluating(parts.model), torch.no_grad():
        for batch in evaluation_batches(
            parts.held_out,
            sequence_length=job.batch.sequence_length,
            micro_size=job.batch.micro_size,
            windows=job.evaluation.sequences,
        ):
            count = parts.objective.count(batch)
            with compute_in(job.precision.compute, parts.device):
                output = parts.objective(*batch.to(parts.device)).result
            nats += float(output.nats)
            tokens += count.tokens
            size += _bytes(parts.held_out, batch, count)
    if not tokens or not size:
        raise RunError(
            f"none of the held-out targets counts (tokens: {tokens}, bytes: {size}): "
            f"loss.ignore_index or loss.token_weights leave all of them out; enlarge "
            f"evaluation.sequences or data.held_out"
        )
    return Score(nats / tokens, nats / math.log(2) / size, tokens)


def _bytes(corpus: Corpus, batch: Batch, count: Count) -> int:
    """The bytes that the targets which count stand for."""
    if count.valid is None:
        return batch.target_bytes
    return int(corpus.token_bytes[batch.targets[count.valid].numpy()].sum())


def judged_part(job: Job, held_out: Corpus) -> Corpus:
    """The part of the held-out side that `evaluate` looks at, for comparison on equal terms.

    Arguments:
        job: the resolved configuration; its evaluation is not null.
        held_out: the whole side.

    Returns:
        a corpus of the first tokens.
    """
    assert job.evaluation is not None
    count = job.evaluation.sequences
    end = len(held_out.tokens)
    if count is not None:
        end = min(end, count * job.batch.sequence_length + 1)
    tokens = held_out.tokens[:end]
    # The first token is never predicted, so its bytes are not counted.
    return replace(held_out, tokens=tokens, byte_count=int(held_out.token_bytes[tokens[1:]].sum()))
