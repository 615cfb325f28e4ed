"""What evaluations need of the other sections, and others of them, as the configuration tells."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from setpoint.config import RUNTIME, Caution, Config, Problem, json_value, resolve, same
from setpoint.optim.config import Plateau
from setpoint.track.console import short_count
from setpoint.train.evaluation.config import BACKWARD, HELD_OUT, LONG_EVALUATION, METRICS, Best

if TYPE_CHECKING:
    from setpoint.config import FieldType
    from setpoint.data.config import Data, SourceConfig
    from setpoint.train.config import Job


def judged_on(job: Job) -> str | None:
    """Say what the evaluations look at that move a plateau, and when there is one.

    Returns:
        text that differs where the metric would; None for other schedules and where nothing is
        evaluated. What is held out follows from the section data, which counts anyway.
    """
    schedule, section = job.schedule, job.evaluation
    if not isinstance(schedule, Plateau) or section is None:
        return None
    name = schedule.monitor.rpartition(".")[0]
    given, sequences = section.dataset(name), section.sequences_of(name)
    when = f"every {section.every}" + (" and before training" if section.before_training else "")
    what = "all sequences" if sequences is None else f"the first {sequences} sequences"
    if given is not None:
        sources = [_plain(source) for source in given.sources]
        what += f" of {json.dumps(sources, ensure_ascii=False, sort_keys=True)}"
    return f"{name} {when}, {what}"


def evaluation_problems(job: Job) -> Iterator[Problem]:
    """Look for metrics that are asked for and not computed."""
    if isinstance(job.schedule, Plateau):
        yield from _plateau_problems(job, job.schedule.monitor)
        follows = judged_on(job)
        if job.schedule.judged_on != follows:
            yield Problem(
                "schedule.judged_on",
                "contradicts the section evaluation, which it follows from",
                valid=() if follows is None else (repr(follows),),
                hint="Remove it.",
            )
    section = job.evaluation
    if section is None or job.checkpoint.keep_best or section.early_stopping is not None:
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
    whole = _tokens(data.sources)
    return None if whole is None else whole * data.held_out


def _tokens(sources: Iterable[SourceConfig]) -> float | None:
    """How many tokens sources hold at most, where a token is a byte; None where nobody knows."""
    from setpoint.data.size import source_bytes

    sizes = [source_bytes(source) for source in sources]
    return None if None in sizes else float(sum(size or 0 for size in sizes))


def hopeless_patience(job: Job) -> str | None:
    """Tell whether a run is over before training can have stopped getting better.

    Returns:
        that it is, in words; None if it is not, if nothing ends early, or if nobody can tell.
    """
    stopping = job.evaluation.early_stopping if job.evaluation is not None else None
    count = _evaluations_in_time(job)
    # The first evaluation is the best so far.
    if stopping is None or count is None or count > stopping.patience:
        return None
    return (
        f"training ends after {stopping.patience} evaluations without a gain, after the first, "
        f"and {count} are made before the last update"
    )


def hopeless_plateau(job: Job) -> str | None:
    """Tell whether a run is over before a plateau can have lowered the learning rate.

    Returns:
        that it is, in words; None if it is not, for other schedules, or if nobody can tell.
    """
    section, count = job.schedule, _evaluations_in_time(job)
    if not isinstance(section, Plateau) or count is None or count > section.patience + 1:
        return None
    return (
        f"the learning rate falls after {section.patience + 1} evaluations without a gain, after "
        f"the first, and {count} are made before the last update"
    )


def _plain(section: Config) -> dict[str, object]:
    """What a section says of what is learned, as plain data; the section may be a view."""
    cls = section.__setpoint__
    found: dict[str, object] = {"type": cls.tag}
    for name, info in cls.fields.items():
        value = json_value(_dumped(info.type, getattr(section, name)))
        # What was added later and says what was before leaves the text as it was.
        if info.role is not RUNTIME and not same(value, info.before):
            found[name] = value
    return found


def _dumped(kind: FieldType, value: object) -> object:
    if isinstance(value, Config):
        return _plain(value)
    if value is None or not kind.nested:
        return kind.dump(value)
    items = [(key, _dumped(inner, item)) for key, item, inner in kind.items(value)]
    return dict(items) if isinstance(value, dict) else [item for _, item in items]


def _evaluations_in_time(job: Job) -> int | None:
    """How many evaluations count and can change the run; None if nobody can tell."""
    section, updates = job.evaluation, job.updates()
    per_update = {"steps": 1, "tokens": job.batch.global_size * job.batch.sequence_length}
    if section is None or updates is None or section.every.unit not in per_update:
        return None
    every = section.every
    # What is seen after the last update comes too late.
    count = int((updates - 1) * per_update[every.unit] // every.count)
    return count + section.before_training


def _plateau_problems(job: Job, monitor: str) -> Iterator[Problem]:
    """A schedule that waits for a metric which nobody computes, or computes too late."""
    section, path = job.evaluation, "schedule.monitor"
    data, _, metric = monitor.rpartition(".")
    if not (data and metric):
        return  # a problem of the schedule's own
    if section is None:
        yield Problem(
            path,
            "is never computed: nothing is evaluated",
            also=("evaluation",),
            hint="Add an evaluation, or choose a schedule that needs none.",
        )
        return
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
    if section.every.unit == "last_step":
        yield Problem(
            "evaluation.every",
            "leaves the schedule nothing to act on: there is one evaluation, after the last update",
            valid=("100 steps",),
            also=(path,),
        )
