"""The callbacks of a session."""

from __future__ import annotations

from typing import Any

from setpoint.config import ImportPath, SetpointError
from setpoint.config.schema.class_info import added_sections
from setpoint.resilience.config import SkipStep
from setpoint.train.callbacks.log import (
    LogCallback,
    MemoryCallback,
    RecordCallback,
    SkippedStepsCallback,
)
from setpoint.train.callbacks.save import NoSaveCallback, SaveCallback
from setpoint.train.config import Job
from setpoint.train.loop import Callback
from setpoint.train.session import Run

# By import path: operations import training, never the reverse.
OF_EVERY_RUN = ("setpoint.ops.chain:ChainCallback", "setpoint.ops.slow_steps:DataWaitCallback")
OF_BAD_STEPS = "setpoint.ops.bad_batches:BadBatches"


def build_callbacks(run: Run) -> list[Callback]:
    """Build Setpoint's own callbacks; their phases determine the order of calls."""
    job, evaluation = run.job, None
    if job.evaluation is not None:
        from setpoint.train.callbacks.evaluate import EvaluateCallback

        evaluation = EvaluateCallback(job.evaluation, run)
    # Before profilers, evaluations and checkpoints allocate memory.
    callbacks: list[Callback] = [MemoryCallback(run)]
    if run.accepted is not None and not run.had_nothing_left:
        callbacks.append(RecordCallback(run))
    limits = run.stop.limits
    if (
        job.profiling is not None
        or job.compile is not None
        or job.resilience.gc is not None
        or job.memory.empty_cache.unit != "never"
        or (limits is not None and limits.ends)
    ):
        from setpoint.train.callbacks.upkeep import watching_callbacks

        callbacks += watching_callbacks(run)
    callbacks += [
        LogCallback(run),
        SaveCallback(run, evaluation) if job.checkpoint.save else NoSaveCallback(run),
    ]
    callbacks += [] if evaluation is None else [evaluation]
    if any(isinstance(policy, SkipStep) for policy in job.resilience.policies.values()):
        callbacks.append(SkippedStepsCallback(run))
    return callbacks


def early_callbacks(job: Job) -> list[Callback]:
    """Build the callbacks of `setpoint.ops`: those of every run, and of the job's sections."""
    tracking, resilience = job.tracking, job.resilience
    sections = (
        job.checkpoint.export,
        job.checkpoint.remote,
        resilience.heartbeat,
        *tracking.alerts,
        tracking.system,
        resilience.stragglers,
        resilience.gpu_health,
    )
    paths = [*OF_EVERY_RUN, *([OF_BAD_STEPS] if resilience.bad_batches else [])]
    operations: list[Any] = [ImportPath(path, trusted=("setpoint",)) for path in paths]
    return [
        *(operation() for operation in operations),
        *(section.build() for section in sections if section is not None),
    ]


def package_callbacks(run: Run) -> list[Callback]:
    """Build the callbacks of sections added by packages.

    Raises:
        SetpointError: a section builds an object of another type.
    """
    built: list[Callback] = []
    for name, section in added_sections(run.job).items():
        callback = section.build(job=run.job, components=run.components, run=run.files)
        if not isinstance(callback, Callback):
            raise SetpointError(
                f"{name}: an added section must build a setpoint.train.loop.Callback; "
                f"{type(section).__name__} built a {type(callback).__name__}"
            )
        built.append(callback)
    return built
