"""Rules about the course of a run: evaluation, checkpoints, rollbacks, profiling, memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from setpoint.config import Caution, Problem, SetpointError, dead, resolve, rule
from setpoint.memory.config import Operators
from setpoint.model.config import HuggingFaceConfig, TransformerConfig
from setpoint.optim.schedule import Plateau
from setpoint.train.evaluation.config import (
    HELD_OUT,
    METRICS,
    Best,
)
from setpoint.units import Period

if TYPE_CHECKING:
    from setpoint.data.config import Data
    from setpoint.data.sources.config import SourceConfig
    from setpoint.profile.config import Profiling
    from setpoint.train.config import Job

LONG_EVALUATION = "evaluation-longer-than-training"
BACKWARD = 3
"""A token of training costs as much as three that are only read: forward 1, backward 2."""


@rule(when=lambda job: not job.checkpoint.keep_best)
def best_problems(job: Job) -> Iterator[Problem]:
    """Settings of the best checkpoint that have no effect."""
    section = job.evaluation
    if section is None or section.early_stopping is not None:
        return
    default = resolve(Best())
    for name in ("data", "metric", "direction"):
        # The direction follows from the metric, so it is not compared separately.
        if getattr(section.best, name) != getattr(default, name):
            yield Problem(
                f"evaluation.best.{name}",
                "has no effect: without checkpoint.keep_best and early stopping nothing uses the "
                "best evaluation",
                also=("checkpoint.keep_best", "evaluation.early_stopping"),
                hint="Remove it.",
            )
            return


def may_be_long(job: Job) -> bool:
    """True if only the data determines whether an evaluation is shorter than training."""
    section = job.evaluation
    if section is None or section.every.unit not in ("steps", "tokens"):
        return False
    counts = [section.sequences_of(name) for name in section.names]
    if None in counts:
        return True
    tokens = sum(count or 0 for count in counts) * job.batch.sequence_length
    return tokens > BACKWARD * _interval(job, section.every)


@rule(
    needs="files",
    when=may_be_long,
    cautions={LONG_EVALUATION: "an evaluation takes longer than the training between two of them"},
)
def long_evaluation(job: Job) -> Iterator[Caution]:
    """Evaluations that take longer than the training between them."""
    from setpoint.track.console import short_count

    needed = needed_tokens(job)
    assert job.evaluation is not None
    if needed is None or needed[0] <= BACKWARD * needed[1]:
        return
    tokens, interval = needed
    least = math.ceil(tokens / BACKWARD / _interval(job, Period("1 step")))
    sequences = max(int(0.1 * BACKWARD * interval / job.batch.sequence_length), 1)
    yield Caution(
        LONG_EVALUATION,
        "evaluation.sequences",
        f"an evaluation reads up to {short_count(tokens)} tokens, and {short_count(interval)} are "
        "trained between two of them; at a third of the cost per token, evaluation takes "
        f"{tokens / BACKWARD / interval:.1f} times as long as training",
        valid=(str(sequences),),
        also=("evaluation.every",),
        hint=f"{sequences} sequences take a tenth of the training time; evaluations take as long "
        f"as training if they are {least} steps apart.",
    )


def needed_tokens(job: Job) -> tuple[float, float] | None:
    """Estimate the cost of an evaluation relative to the training before it.

    Returns:
        maximum number of tokens in an evaluation, and number of tokens trained between two; None if
        the period is in another unit, or a data set of unknown size is evaluated completely.
    """
    section, batch = job.evaluation, job.batch
    if section is None or section.every.unit not in ("steps", "tokens"):
        return None
    total = 0.0
    for name in section.names:
        size = _held_out_tokens(job.data, batch.sequence_length) if name == HELD_OUT else None
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
    return total, _interval(job, section.every)


def _interval(job: Job, every: Period) -> float:
    """Tokens of a period in steps or tokens; steps of a batch size ramp count as their mean."""
    if every.unit == "tokens":
        return every.count
    batch, sequences = job.batch, float(job.batch.global_size)
    if batch.ramp is not None and (steps := job.total_steps()):
        sequences = batch.sequences_before(steps) / steps
    return every.count * sequences * batch.sequence_length


def _held_out_tokens(data: Data, length: int) -> float | None:
    if data.validation:
        return _tokens(data.validation)
    is_one_row = data.packing.method != "concatenate" and (
        data.packing.too_long != "split" or all(source.has_answers for source in data.sources)
    )
    if data.held_out >= 1 and is_one_row:
        return data.held_out * length
    # The number of tokens in a number of documents is unknown before they are read.
    total = None if data.streams or data.held_out >= 1 else _tokens(data.sources)
    return None if total is None else total * data.held_out


def _tokens(sources: Iterable[SourceConfig]) -> float | None:
    """Upper bound on the tokens of sources, one per byte; None if unknown."""
    sizes = [source.most_tokens() for source in sources]
    return None if None in sizes else float(sum(size or 0 for size in sizes))


@rule(when=lambda job: isinstance(job.schedule, Plateau))
def plateau_problems(job: Job) -> Iterator[Problem]:
    """A metric of the plateau schedule that is never computed."""
    assert isinstance(job.schedule, Plateau)
    follows = job.plateau_basis()
    if job.schedule.evaluated_on != follows:
        yield Problem(
            "schedule.evaluated_on",
            "contradicts the section evaluation, from which it is derived",
            valid=() if follows is None else (repr(follows),),
            hint="Remove it.",
        )
    section, path = job.evaluation, "schedule.monitor"
    data, _, metric = job.schedule.monitor.rpartition(".")
    if section is None or not (data and metric):
        return  # a problem of the schedule itself, or a conflict
    if data not in section.names or metric not in METRICS:
        reason = (
            f"{data} is not a data set"
            if data not in section.names
            else f"{metric} is not a metric"
        )
        given = [m for m in METRICS if section.computes(section.names[0], m)]
        names = [f"{name}.{metric_name}" for name in section.names for metric_name in given]
        yield Problem(path, f"is never computed: {reason} of the evaluation", valid=names)
    elif not section.computes(data, metric):
        yield Problem(
            path,
            f"is never computed: evaluation.accuracy is off, so {metric} is not counted",
            also=("evaluation.accuracy",),
            hint="Set evaluation.accuracy = true.",
        )


@rule(when=lambda job: job.checkpoint.export is not None)
def export_problems(job: Job) -> Iterator[Problem]:
    """Exports of models that the Hugging Face format does not cover."""
    from setpoint.model.pretrained.config_json import family_for

    if isinstance(job.model, HuggingFaceConfig):
        return
    also, hint = ("model",), "Set checkpoint.export = null, or change the model."
    if not isinstance(job.model, TransformerConfig):
        kind = type(job.model).__setpoint__.tag
        yield Problem(
            "checkpoint.export",
            f"a model of type = {kind} cannot be exported in Hugging Face format",
            valid=("null",),
            also=also,
            hint=hint,
        )
        return
    try:
        family_for(job.model)
    except SetpointError as error:
        message = str(error).replace(":\n  ", ": ").replace("\n  ", "; ")
        yield Problem("checkpoint.export", message, valid=("null",), also=also, hint=hint)


URL = "checkpoint.remote.url"


@rule(when=lambda job: job.checkpoint.remote is not None)
def url_problems(job: Job) -> Iterator[Problem]:
    """An upload target that is not a URL."""
    from setpoint.hub.fetch import is_url

    section = job.checkpoint.remote
    assert section is not None
    if not is_url(section.url):
        valid = ("s3://bucket/runs", "gs://bucket/runs", "file:///shared/runs")
        yield Problem(URL, f"is not a URL: {section.url!r}", valid=valid)


@rule(needs="import", when=lambda job: job.checkpoint.remote is not None)
def protocol_problems(job: Job) -> Iterator[Problem]:
    """An upload URL that no installed package supports."""
    from setpoint.hub.fetch import is_url, protocol_problem

    section = job.checkpoint.remote
    assert section is not None
    problem = protocol_problem(section.url, "remote") if is_url(section.url) else ""
    if problem:
        message, _, valid = problem.partition("\nValid: ")
        yield Problem(URL, message, hint=f"Valid: {valid}")


@rule(when=lambda job: bool(job.resilience.rollbacks))
def rollback_problems(job: Job) -> Iterator[Problem]:
    """Rollbacks without a checkpoint to roll back to."""
    for field in job.resilience.rollbacks:
        if not job.checkpoint.save:
            yield Problem(
                field,
                "rollback needs a checkpoint, but checkpoint.save = false saves none",
                valid=("fail", "skip"),
                also=("checkpoint.save",),
            )
        elif not job.checkpoint.at_start and all(
            every.unit in ("never", "last_step") for every in job.checkpoint.intervals
        ):
            yield Problem(
                field,
                "rollback needs a checkpoint, but none is saved before the end of the run",
                valid=("fail", "skip"),
                also=("checkpoint.every", "checkpoint.at_start"),
                hint="Or save checkpoints during the run with checkpoint.every.",
            )


@rule(when=lambda job: job.profiling is not None)
def profiling_problems(job: Job) -> Iterator[Problem]:
    """Profiled steps beyond the end of the run, and profiled ranks that do not exist."""
    from setpoint.profile.config import rank_problems

    section, steps = job.profiling, job.total_steps()
    assert section is not None
    if steps is not None:
        yield from _windows(section, steps)
    yield from rank_problems(section, job.parallel)


def _windows(section: Profiling, steps: int) -> Iterator[Problem]:
    """Profiling cycles that end after the run, and that every session would repeat."""
    cycle = section.wait + section.warmup + section.active
    first = section.skip + cycle
    parts = {"wait": section.wait, "warmup": section.warmup, "active": section.active}
    counted = " + ".join(f"{count} ({name})" for name, count in parts.items())
    also = (*(f"profiling.{name}" for name in ("skip", *parts)), "duration")
    if first > steps:
        yield Problem(
            "profiling",
            f"the first cycle ends after {first} = {section.skip} (skip) + {counted} steps, but "
            f"the run has only {steps}",
            also=also,
        )
        return
    repeat = section.repeat
    if repeat is not None and section.skip + repeat * cycle > steps:
        cycles = (steps - section.skip) // cycle
        yield Problem(
            "profiling.repeat",
            f"{repeat} cycles end after {section.skip + repeat * cycle} = {section.skip} (skip) "
            f"+ {repeat} * ({counted}) steps, but the run has only {steps}",
            valid=(str(cycles), "null"),
            also=also,
        )


@dead("compile.optimize_ddp", holds=(False,))
def optimize_ddp_is_dead(job: Job) -> str | None:
    """Graph splitting for DDP without DDP."""
    parallel = job.parallel
    is_divided = parallel.copies < parallel.world_size
    return "the ranks are not replicas (DDP) only" if is_divided else None


@rule(needs="torch", when=lambda job: job.compile is not None)
def compiler_problems(job: Job) -> Iterator[Problem]:
    """Packages and tools that torch.compile needs but this machine lacks."""
    import torch

    from setpoint.compile.requirements import machine_problems

    section, device = job.compile, job.parallel.device
    assert section is not None
    has_gpu = torch.cuda.is_available()
    if device == "auto":
        device = "cuda" if has_gpu else "cpu"
    if device == "cpu" or has_gpu:
        yield from machine_problems(section, device)


def memory_suggestions(job: Job) -> list[str]:
    """List settings that reduce memory, cheapest first."""
    memory, suggestions = job.memory, list[str]()
    if job.batch.micro_size > 1:
        suggestions.append("a smaller batch.micro_size (with a larger batch.accumulation)")
    if not type(job.loss).from_hidden and isinstance(job.model, TransformerConfig):
        suggestions.append("loss.type = chunked_cross_entropy, which never stores all logits")
    checkpointing = memory.activation_checkpointing
    if checkpointing is None:
        suggestions.append(
            "memory.activation_checkpointing.type = full, which stores less per layer"
        )
    can_offload = memory.activation_offload is None and not isinstance(checkpointing, Operators)
    if job.parallel.device != "cpu" and can_offload:
        suggestions.append("memory.activation_offload, which stores activations in host memory")
    return [*suggestions, "a shorter batch.sequence_length", "a smaller model"]
