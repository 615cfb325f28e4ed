"""The callbacks of a session, in the order in which they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from setpoint.checkpoint.store import CheckpointStore
from setpoint.config import SetpointError, added_sections
from setpoint.profile.config import Profiling
from setpoint.track.events import EventLog
from setpoint.track.jsonl import JsonlWriter
from setpoint.track.progress import Progress
from setpoint.track.run_directory import RunDirectory
from setpoint.train.build.components import Components
from setpoint.train.build.utilization import Utilization
from setpoint.train.callback import Callback
from setpoint.train.callbacks.compile import watch_compiler
from setpoint.train.callbacks.evaluate import EvaluateCallback
from setpoint.train.callbacks.experts import ExpertsCallback
from setpoint.train.callbacks.gc import CollectCallback
from setpoint.train.callbacks.log import LogCallback, Tracker
from setpoint.train.callbacks.memory import EmptyCacheCallback, MemoryCallback
from setpoint.train.callbacks.profile import ProfileCallback
from setpoint.train.callbacks.save import SaveCallback
from setpoint.train.config import Job
from setpoint.train.evaluation.best_metric import BestMetric


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the callbacks of a session have to do with.

    Arguments:
        state: that of the checkpoint which the session goes on from; empty for a new run.
    """

    job: Job
    parts: Components
    run: RunDirectory
    store: CheckpointStore
    events: EventLog
    progress: Progress
    trackers: Sequence[Tracker]
    state: Mapping[str, Any]
    best: BestMetric
    use: Utilization


def build_callbacks(around: Surroundings) -> tuple[list[Callback], EvaluateCallback]:
    """Build Setpoint's own callbacks.

    Returns:
        them in order, and the one among them that knows the scores.
    """
    trackers, progress = around.trackers, around.progress
    metrics = next((t for t in trackers if isinstance(t, JsonlWriter)), None)
    experts = ExpertsCallback()
    parts, job = around.parts, around.job
    log = LogCallback(
        trackers,
        progress,
        around.use.flops_per_token,
        around.use.whole_peak,
        more=lambda: experts.metrics() | parts.scaler.metrics(),
        state=around.state,
    )
    evaluate = EvaluateCallback(trackers, progress, around.events, around.best)
    save = SaveCallback(
        around.store, metrics, around.events, evaluate, log, around.state.get("metrics_offset", 0)
    )
    # What belongs to an update comes first, then what tells of it, and what keeps it comes last.
    callbacks = [experts, log, evaluate, save]
    if around.job.compile is not None:
        # Where a fallback ends the run, its step is neither evaluated nor saved.
        watch = watch_compiler(around.job.compile, around.parts, around.events, progress)
        callbacks.insert(callbacks.index(log), watch)
    if job.profiling is not None:
        callbacks[:0] = _profiled(job.profiling, around)
    # Before anything else has taken memory: profilers, evaluations and checkpoints do.
    callbacks.insert(0, MemoryCallback(around.events, progress))
    if job.memory.empty_cache.unit != "never":
        callbacks.append(EmptyCacheCallback(job.memory.empty_cache))
    if job.resilience.gc is not None:
        callbacks.append(CollectCallback(job.resilience.gc))
    return callbacks, evaluate


def added_callbacks(job: Job, parts: Components, run: RunDirectory) -> list[Callback]:
    """Build what the sections describe that packages have added to the job.

    Raises:
        SetpointError: if a section builds something else.
    """
    built: list[Callback] = []
    for name, section in added_sections(job).items():
        callback = section.build(job=job, parts=parts, run=run)
        if not isinstance(callback, Callback):
            raise SetpointError(
                f"{name}: an added section must build a setpoint.train.callback.Callback; "
                f"{type(section).__name__} built a {type(callback).__name__}"
            )
        built.append(callback)
    return built


def _profiled(section: Profiling, around: Surroundings) -> list[Callback]:
    """What profiles, on the ranks that are asked for."""
    there = torch.distributed.is_available() and torch.distributed.is_initialized()
    rank = torch.distributed.get_rank() if there else 0
    if section.ranks is not None and rank not in section.ranks:
        return []
    device = around.parts.device
    run, events, progress = around.run.path, around.events, around.progress
    return [ProfileCallback(section, run, rank, device, events, progress)]
