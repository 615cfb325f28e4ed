"""Evaluation on text that is not trained on, and its scores in rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from setpoint.data.corpus import Corpus
from setpoint.data.evaluation import EvaluationRows
from setpoint.model.layers import evaluating
from setpoint.precision.autocast import compute_in
from setpoint.shapes.batch import Batch
from setpoint.shapes.scoring import EvalSums, Score, perplexity, score_text
from setpoint.track.progress import Work, no_work
from setpoint.train.averaging import evaluation_point
from setpoint.train.build.components import Components
from setpoint.train.config import Job
from setpoint.train.evaluation.config import HELD_OUT

Scores = dict[str, Score]
"""The score of each data set by its name, held-out text first."""


def row_of(scores: Mapping[str, Score]) -> dict[str, float | int]:
    """Write scores as a part of a row of metrics.

    Returns:
        numbers by name: `held_out_loss` and so on.
    """
    return {
        f"{name}_{metric}": value
        for name, score in scores.items()
        for metric, value in _figures(score)
    }


def scores_in(row: Mapping[str, Any]) -> Scores:
    """Read scores back from a row of metrics.

    Returns:
        the scores; of rows without any, none.
    """
    found: Scores = {}
    for key in row:
        name = key.removesuffix("_bits_per_byte")
        if name != key:
            loss, bits, tokens = (row[f"{name}_{m}"] for m in ("loss", "bits_per_byte", "tokens"))
            found[name] = Score(loss, perplexity(loss), bits, tokens, row.get(f"{name}_accuracy"))
    return found


def _figures(score: Score) -> Iterator[tuple[str, float | int]]:
    for name in ("loss", "perplexity", "bits_per_byte", "tokens", "accuracy"):
        value = getattr(score, name)
        if value is not None:
            yield name, value


def evaluate(
    job: Job,
    components: Components,
    between: Callable[[], None] = lambda: None,
    show: Work = no_work,
) -> Scores:
    """Evaluate the model on all data sets, the same sequences of each at each call.

    Ranks divide the sequences of each among them; the scores are those of all, on every rank.

    Arguments:
        job: the resolved configuration; its evaluation is not null.
        components: the objects of the job; nothing of their state changes.
        between: called before each batch; what it raises ends the evaluation, and it raises the
            same on all ranks.

    Raises:
        RunError: none of the targets of a data set counts.
    """
    section, feed, objective = job.evaluation, components.eval_feed, components.objective
    assert section is not None and feed is not None

    def sums(batch: Batch, valid: Tensor | None) -> EvalSums:
        with compute_in(job.precision.compute, job.precision.params, components.device):
            if section.accuracy:
                return objective.evaluate(batch, valid)
            return EvalSums(objective.sums(batch).nats, None)

    with evaluation_point(components), evaluating(components.model), torch.no_grad():
        try:
            return {
                name: score_text(
                    feed,
                    name,
                    count=objective.count,
                    sums=sums,
                    token_bytes=components.tokenizer.token_bytes,
                    ranks=components.world,
                    sequence=components.sequence,
                    between=between,
                    show=show,
                )
                for name in feed.totals
            }
        finally:
            components.replicas.free()


def eval_slice(job: Job, held_out: EvaluationRows) -> Corpus:
    """The part of the held-out side that `evaluate` looks at, for comparison on equal terms.

    Arguments:
        job: the resolved configuration; its evaluation is not null.

    Returns:
        a corpus whose `trained` are the targets that count.
    """
    assert job.evaluation is not None
    corpus = held_out.first(job.evaluation.sequences_of(HELD_OUT))
    if not job.loss.left_out:
        return corpus
    assert isinstance(corpus.trained, np.ndarray)
    tokens = corpus.tokens[:]
    return corpus.part(tokens, corpus.trained & ~np.isin(tokens, job.loss.left_out))
