"""The callbacks of a session."""

from __future__ import annotations

from functools import partial

from setpoint.config import ImportPath, SetpointError
from setpoint.config.schema.class_info import added_sections
from setpoint.resilience.config import SkipStep
from setpoint.train.callbacks.evaluate import EvaluateCallback
from setpoint.train.callbacks.log import LogCallback, RecordCallback, SkippedStepsCallback
from setpoint.train.callbacks.profile import (
    CollectCallback,
    EmptyCacheCallback,
    LimitsCallback,
    MemoryCallback,
    ProfileCallback,
    watch_compiler,
)
from setpoint.train.callbacks.save import ExportCallback, NoSaveCallback, SaveCallback
from setpoint.train.config import Job
from setpoint.train.loop import Callback
from setpoint.train.recording import change_record
from setpoint.train.session import Run

# By import path: operations import training, never the other way round.
OF_EVERY_RUN = (
    "setpoint.ops.chain:ChainCallback",
    "setpoint.ops.bad_batches:BadBatchesCallback",
    "setpoint.ops.pace:DataWaitCallback",
)


def build_callbacks(run: Run) -> list[Callback]:
    """Build Setpoint's own callbacks; their phases say in which order they run."""
    job, components, events, progress = run.job, run.components, run.events, run.progress
    use, trackers = run.utilization, run.trackers
    evaluation = None
    if job.evaluation is not None:
        evaluation = EvaluateCallback(job.evaluation, trackers, progress, events, run.best)
    export = None
    if job.checkpoint.export is not None:
        export = ExportCallback(job.checkpoint.export, run)
    # Before anything else has taken memory: profilers, evaluations and checkpoints do.
    callbacks: list[Callback] = [MemoryCallback(events, progress)]
    if run.accepted is not None and not run.had_nothing_left:
        callbacks.append(RecordCallback(partial(change_record, run)))
    section = job.profiling
    rank = components.world.rank
    if section is not None and (section.ranks is None or rank in section.ranks):
        place = run.directory
        callbacks.append(ProfileCallback(section, place, rank, components.device, events, progress))
    if job.compile is not None:
        # Where a fallback ends the run, its step is neither logged, evaluated nor saved.
        callbacks.append(watch_compiler(job, components, events, progress))
    callbacks += [
        LogCallback(trackers, progress, use.flops_per_token, use.whole_peak, run.mean),
        SaveCallback(run, evaluation, export) if job.checkpoint.save else NoSaveCallback(progress),
    ]
    callbacks += [callback for callback in (evaluation, export) if callback is not None]
    if any(isinstance(policy, SkipStep) for policy in job.resilience.policies.values()):
        callbacks.append(SkippedStepsCallback(events, progress))
    if run.stop.limits is not None and run.stop.limits.ends:
        callbacks.append(LimitsCallback(run.stop.limits))
    if job.memory.empty_cache.unit != "never":
        callbacks.append(EmptyCacheCallback(job.memory.empty_cache))
    if job.resilience.gc is not None:
        callbacks.append(CollectCallback(job.resilience.gc))
    return callbacks


def early_callbacks(job: Job) -> list[Callback]:
    """Build the callbacks of `setpoint.ops`: of every run, and of sections of the job."""
    tracking, resilience = job.tracking, job.resilience
    sections = (
        job.checkpoint.remote,
        resilience.heartbeat,
        *tracking.alerts,
        tracking.system,
        resilience.stragglers,
        resilience.gpu_health,
    )
    operations = [ImportPath(path, trusted=("setpoint",))() for path in OF_EVERY_RUN]
    return [*operations, *(section.build() for section in sections if section is not None)]


def package_callbacks(run: Run) -> list[Callback]:
    """Build what the sections describe that packages have added to the job.

    Raises:
        SetpointError: if a section builds something else.
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
