"""Evaluation of a model on text that it is not trained on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from setpoint.config import RunError
from setpoint.data.corpus import Corpus
from setpoint.data.evaluation import EvaluationFeed
from setpoint.model.layers import evaluating
from setpoint.parallel.world import World
from setpoint.precision.autocast import compute_in
from setpoint.shapes.batch import Batch, Count
from setpoint.track.progress import Work, no_work
from setpoint.train.build.components import Components
from setpoint.train.config import Job
from setpoint.train.evaluation.config import HELD_OUT
from setpoint.train.evaluation.score import Score, Scores
from setpoint.train.step.averaging import evaluation_point


def evaluate(
    job: Job,
    parts: Components,
    between: Callable[[], None] = lambda: None,
    show: Work = no_work,
) -> Scores:
    """Evaluate the model on all data sets, the same sequences of each at each call.

    Ranks divide the sequences of each among them; the scores are those of all, on every rank.

    Arguments:
        job: the resolved configuration; its evaluation is not null.
        parts: the objects of the job; nothing of their state changes.
        between: called before each batch; what it raises ends the evaluation, and it raises the
            same on all ranks.

    Raises:
        RunError: none of the targets of a data set counts.
    """
    assert parts.eval_feed is not None
    with evaluation_point(parts), evaluating(parts.model), torch.no_grad():
        try:
            return {
                name: _score(job, parts, parts.eval_feed, name, between, show)
                for name in parts.eval_feed.totals
            }
        finally:
            parts.replicas.free()


def _score(
    job: Job,
    parts: Components,
    feed: EvaluationFeed,
    name: str,
    between: Callable[[], None],
    show: Work,
) -> Score:
    """Evaluate the model as it stands on one text."""
    assert job.evaluation is not None
    nats, correct, tokens, size, own, done = 0.0, 0, 0, 0, 0, 0
    total = feed.totals[name]
    what = f"evaluating {name}, sequences"
    show(what, 0, total)
    for batch in feed.batches(name):
        between()
        count = parts.objective.count(batch)
        part, valid = parts.sequence.cut(batch.to(parts.device)), parts.sequence.take_valid(count)
        with compute_in(job.precision.compute, job.precision.params, parts.device):
            if job.evaluation.accuracy:
                sums = parts.objective.evaluate(part, valid)
                found = int(sums.correct)
            else:
                sums, found = parts.objective.sums(part), 0
        if own < feed.own(name):
            nats += float(sums.nats)
            correct += found
            tokens += count.targets
            size += _bytes(parts.tokenizer.token_bytes, batch, count)
            own += len(batch.inputs)
        done = min(done + feed.together, total)
        show(what, done, total)
    nats, correct, tokens, size = _over_ranks(parts.world, nats, correct, tokens, size)
    if not tokens or not size:
        raise RunError(
            f"none of the targets of {name} counts (tokens: {tokens}, "
            f"bytes: {size}): loss.ignore_index or loss.token_weights leave all of them "
            f"out; evaluate on more sequences or more text"
        )
    return Score.of(nats, tokens, size, correct if job.evaluation.accuracy else None)


def _over_ranks(
    world: World, nats: float, correct: int, tokens: int, size: int
) -> tuple[float, int, int, int]:
    """The sums of all ranks, to which each gives what only it holds."""
    if world.size == 1:
        return nats, correct, tokens, size
    if not world.gives_loss:
        nats, correct = 0.0, 0
    if not world.gives_counts:
        tokens, size = 0, 0
    sums = torch.tensor((nats, correct, tokens, size), dtype=torch.float64, device=world.device)
    world.sum(sums)
    nats, *counts = sums.tolist()
    correct, tokens, size = map(int, counts)  # exact: fp64 counts to 2**53
    return nats, correct, tokens, size


def _bytes(token_bytes: npt.NDArray[np.int64], batch: Batch, count: Count) -> int:
    """The bytes that the targets which count stand for."""
    if count.valid is None:
        return batch.target_bytes
    return int(token_bytes[batch.targets[count.valid].numpy()].sum())


def eval_slice(job: Job, held_out: Corpus) -> Corpus:
    """The part of the held-out side that `evaluate` looks at, for comparison on equal terms.

    Arguments:
        job: the resolved configuration; its evaluation is not null.
    """
    assert job.evaluation is not None
    count = job.evaluation.sequences_of(HELD_OUT)
    end = len(held_out.tokens)
    if count is not None:
        end = min(end, count * job.batch.sequence_length + 1)
    tokens = held_out.tokens[:end]
    # The first token is never predicted, so its bytes are not counted.
    return replace(held_out, tokens=tokens, byte_count=int(held_out.token_bytes[tokens[1:]].sum()))
