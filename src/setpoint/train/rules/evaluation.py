"""Cross-section checks of `[evaluation]` and of the schedule that follows its metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from setpoint.config import Caution, Problem, resolve
from setpoint.optim.config import Plateau
from setpoint.track.console import short_count
from setpoint.train.evaluation.config import BACKWARD, HELD_OUT, LONG_EVALUATION, METRICS, Best

if TYPE_CHECKING:
    from setpoint.data.config import Data
    from setpoint.data.sources.config import SourceConfig
    from setpoint.train.config import Job


def best_problems(job: Job) -> Iterator[Problem]:
    """Find a metric of the best that selects nothing."""
    section = job.evaluation
    if section is None or section.early_stopping is not None:
        return
    usual = resolve(Best())
    for name in ("data", "metric", "direction"):
        # The direction follows from the metric, so that it is not looked at beside that.
        if getattr(section.best, name) != getattr(usual, name):
            yield Problem(
                f"evaluation.best.{name}",
                "has no effect: no checkpoint is kept as the best, and nothing ends early",
                also=("checkpoint.keep_best", "evaluation.early_stopping"),
                hint="Remove it.",
            )
            return


def long_evaluation(job: Job) -> Iterator[Caution]:
    """Look for evaluations that take longer than the training between two of them."""
    found = needed_tokens(job)
    assert job.evaluation is not None
    if found is None or found[0] <= BACKWARD * found[1]:
        return
    tokens, between = found
    least = math.ceil(tokens / BACKWARD / (job.batch.global_size * job.batch.sequence_length))
    sequences = max(int(0.1 * BACKWARD * between / job.batch.sequence_length), 1)
    yield Caution(
        LONG_EVALUATION,
        "evaluation.sequences",
        f"an evaluation reads up to {short_count(tokens)} tokens, and {short_count(between)} are "
        f"trained on between two; reading costs a third of training, so that evaluating takes "
        f"{tokens / BACKWARD / between:.1f} times as long",
        valid=(str(sequences),),
        also=("evaluation.every",),
        hint=f"{sequences} sequences take a tenth of the time; evaluations as long as the "
        f"training are {least} steps apart.",
    )


def needed_tokens(job: Job) -> tuple[float, float] | None:
    """Estimate what an evaluation costs beside the training between two of them.

    Returns:
        tokens of an evaluation, at most, and of the training; None where the period does not say,
        or a data set of unknown size is evaluated whole.
    """
    section, batch = job.evaluation, job.batch
    if section is None or section.every.unit not in ("steps", "tokens"):
        return None
    per_step = batch.global_size * batch.sequence_length
    between = section.every.count * (per_step if section.every.unit == "steps" else 1)
    total = 0.0
    for name in section.names:
        size = _held_out_tokens(job.data) if name == HELD_OUT else None
        given = section.dataset(name)
        if given is not None:
            size = _tokens(given.sources)
        sequences = section.sequences_of(name)
        if sequences is not None:
            most = sequences * batch.sequence_length
            size = most if size is None else min(size, most)
        if size is None:
            return None
        total += size
    return total, between


def _held_out_tokens(data: Data) -> float | None:
    if data.validation:
        return _tokens(data.validation)
    # How many tokens some number of documents have is not known before they are read.
    whole = None if data.streams or data.held_out >= 1 else _tokens(data.sources)
    return None if whole is None else whole * data.held_out


def _tokens(sources: Iterable[SourceConfig]) -> float | None:
    """How many tokens sources hold at most, where a token is a byte; None where it is unknown."""
    sizes = [source.most_tokens() for source in sources]
    return None if None in sizes else float(sum(size or 0 for size in sizes))


def plateau_problems(job: Job) -> Iterator[Problem]:
    """Find a metric that a plateau schedule follows, and that is not computed, or too late."""
    assert isinstance(job.schedule, Plateau)
    follows = job.plateau_basis()
    if job.schedule.evaluated_on != follows:
        yield Problem(
            "schedule.evaluated_on",
            "contradicts the section evaluation, which it follows from",
            valid=() if follows is None else (repr(follows),),
            hint="Remove it.",
        )
    section, path = job.evaluation, "schedule.monitor"
    data, _, metric = job.schedule.monitor.rpartition(".")
    if section is None or not (data and metric):
        return  # a problem of the schedule's own, or a conflict
    if data not in section.names or metric not in METRICS:
        what = f"{data} is no data set" if data not in section.names else f"{metric} is no metric"
        given = [m for m in METRICS if section.computes(section.names[0], m)]
        names = [f"{name}.{each}" for name in section.names for each in given]
        yield Problem(path, f"is never computed: {what} of the evaluation", valid=names)
    elif not section.computes(data, metric):
        yield Problem(
            path,
            f"is never computed: {metric} is not counted",
            also=("evaluation.accuracy",),
            hint="Set evaluation.accuracy = true.",
        )
