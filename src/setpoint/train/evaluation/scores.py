"""Evaluation of a model: evaluated weights, scores, and the state of all evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from setpoint.config import plural
from setpoint.model.build import evaluating
from setpoint.precision.mixed_precision import compute_in
from setpoint.shapes.batch import Batch
from setpoint.shapes.placed import Named, put
from setpoint.shapes.protocols import Work, no_work
from setpoint.shapes.scoring import EvalSums, Score, perplexity, score_text
from setpoint.train.build.components import Components
from setpoint.train.config import Job
from setpoint.train.evaluation.config import HELD_OUT, Evaluation

Scores = dict[str, Score]
"""The score of each data set by its name, held-out text first."""
COUNTS = ("tokens", "sequences", "total_sequences")
"""The figures of a score that say of how much text it is."""


def row_of(scores: Mapping[str, Score]) -> dict[str, float | int]:
    """Convert scores to part of a metrics row.

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
        the scores; empty for a row without any.
    """
    scores: Scores = {}
    for key in row:
        name = key.removesuffix("_bits_per_byte")
        if name != key:
            figures = (row[f"{name}_{metric}"] for metric in ("loss", "bits_per_byte", *COUNTS))
            loss, bits, tokens, count, total = figures
            accuracy = row.get(f"{name}_accuracy")
            scores[name] = Score(loss, perplexity(loss), bits, tokens, count, total, accuracy)
    return scores


def _figures(score: Score) -> Iterator[tuple[str, float | int]]:
    for name in ("loss", "perplexity", "bits_per_byte", *COUNTS, "accuracy"):
        value = getattr(score, name)
        if value is not None:
            yield name, value


def evaluate(
    job: Job,
    components: Components,
    between: Callable[[], None] = lambda: None,
    show: Work = no_work,
) -> Scores:
    """Evaluate the model on all data sets, with the same sequences every time.

    The ranks divide the sequences of each data set; the scores cover all of them, on every rank.

    Arguments:
        job: the resolved configuration; its evaluation is not null.
        components: the objects of the job; their state does not change.
        between: called before each batch; an error that it raises ends the evaluation on all ranks.

    Raises:
        RunError: no target of a data set has weight.
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


TRAINING = "training"
"""File stem for the trained weights in a checkpoint."""


@runtime_checkable
class Averages(Protocol):
    """Optimizer whose result is an average of its iterates."""

    def averaged(self) -> AbstractContextManager[Mapping[Tensor, Tensor]]:
        """Replace the parameters with their average, and restore them bit for bit afterwards.

        Returns:
            a context that yields the trained values by parameter.
        """
        ...


@contextmanager
def evaluation_point(components: Components) -> Iterator[dict[str, Tensor]]:
    """Switch the model to its evaluation weights, which are the ones saved and used.

    Arguments:
        components: the objects of a job; no effect for most optimizers.

    Returns:
        a context, after which all weights are restored bit for bit. It yields the trained weights
        by name, if they differ.
    """
    optimizer = components.optimizer
    if not isinstance(optimizer, Averages):
        yield {}
        return
    try:
        with optimizer.averaged() as kept:
            components.weights.master_to_params()
            named = components.weights.named_parameters()
            yield {name: kept[param] for name, param in named if param in kept}
    finally:
        components.weights.master_to_params()


def restore_training_weights(components: Components, training: Named) -> None:
    """Restore the trained weights after loading the evaluation weights.

    Arguments:
        training: the weights that `evaluation_point` yielded at the time of saving.
    """
    for name, param in components.weights.named_parameters():
        if name in training:
            put(param, training[name])
    components.weights.master_to_params()


KEYS = ("measure", "step", "reference", "lowest", "evals_without_gain", "due")
"""The attributes that the state holds."""


@dataclass(slots=True)
class EvaluationState:
    """State of a run's evaluations: the last one, and improvements that early stopping counts.

    Values are negated if higher is better. The best checkpoint is chosen by the store.

    Arguments:
        measure: the metric and its data; only values of equal measures can be compared.
        step: the step of the last evaluation; -1 before the first.
        reference: value that the next improvement must beat by `min_delta`; None before the first
            evaluation.
        lowest: the lowest value so far, which may be an improvement too small to count.
        due: an evaluation of the current step that was interrupted by a stop, True if it counts for
            patience and plateaus; None if there is none.
        changed: fields in which the measure differs from that of the checkpoint.
    """

    measure: dict[str, Any] = field(default_factory=dict)
    step: int = -1
    reference: float | None = None
    evals_without_gain: int = 0
    due: bool | None = None
    changed: list[str] = field(default_factory=list)
    lowest: float | None = None

    def observe(self, value: float, min_delta: float = 0.0) -> None:
        """Add the value of an evaluation.

        Arguments:
            value: lower is better; NaN is never an improvement.
        """
        if not math.isnan(value) and (self.lowest is None or value < self.lowest):
            self.lowest = value
        first = self.reference is None and not math.isnan(value)
        if first or (self.reference is not None and value < self.reference - min_delta):
            self.reference, self.evals_without_gain = value, 0
        else:
            self.evals_without_gain += 1

    def stop_reason(self, section: Evaluation | None) -> str | None:
        """Reason to end training early, when the metric has stopped improving; otherwise None."""
        stopping = section.early_stopping if section is not None else None
        if section is None or stopping is None or self.evals_without_gain < stopping.patience:
            return None
        best, by = section.best, f" by more than {stopping.min_delta:g}"
        text = (
            f"{best.metric.replace('_', ' ')} on {best.data} has not improved"
            f"{by * (stopping.min_delta > 0)} for {plural(self.evals_without_gain, 'evaluation')}"
        )
        lowest = self.reference if self.lowest is None else self.lowest
        if lowest is None:
            return f"{text}; it was always NaN"
        return f"{text}; the best was {-lowest if best.direction == 'max' else lowest:.6g}"

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint."""
        return {key: getattr(self, key) for key in KEYS}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from a checkpoint.

        If the measure has changed, earlier values cannot be compared, and the counts are reset.
        """
        saved = EvaluationState(**state)
        self.step, self.due = saved.step, saved.due
        today, before = self.measure, saved.measure
        if today and before:
            self.changed = [key for key in today if before.get(key) != today[key]]
        # Without an evaluation the state is kept for a session that evaluates again.
        if not today or (before and not self.changed):
            self.measure, self.reference, self.lowest = before, saved.reference, saved.lowest
            self.evals_without_gain = saved.evals_without_gain
        else:
            self.reference, self.lowest, self.evals_without_gain = None, None, 0


def value_of(section: Evaluation, scores: Scores) -> float:
    """Value of an evaluation that selects the best checkpoint; lower is better."""
    value = scores[section.best.data].metric(section.best.metric)
    return -value if section.best.direction == "max" else value


def measure_of(job: Job, components: Components) -> dict[str, Any]:
    """Describe the metric that selects the best checkpoint, and its data.

    Arguments:
        job: the resolved configuration; its evaluation is not null.

    Returns:
        plain values for JSON; metrics of equal measures can be compared.
    """
    section = job.evaluation
    assert section is not None
    best = section.best
    data = components.held_out if best.data == HELD_OUT else components.eval_sets[best.data]
    assert data is not None
    return {
        "data": best.data,
        "metric": best.metric,
        "direction": best.direction,
        "sequences": section.sequences_of(best.data),
        "sequence_length": job.batch.sequence_length,
        "rows": data.layout,
        "text": data.identity.digest,
        "left_out": [*job.loss.left_out],
    }


def evaluation_state_of(job: Job, components: Components) -> EvaluationState:
    """State of a run that has no evaluations yet."""
    return EvaluationState({} if job.evaluation is None else measure_of(job, components))
