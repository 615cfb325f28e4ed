"""One execution of a job: refuse, build, open, loop, close."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from setpoint.checkpoint.store import CheckpointStore
from setpoint.config import SetpointError
from setpoint.parallel.device import choose_device
from setpoint.parallel.hangs import LivenessCheck
from setpoint.parallel.replica_groups import ReplicaGroups
from setpoint.parallel.world import World, joined, world_of
from setpoint.resilience.signals import StopRequest, active
from setpoint.track.trackers import Trackers
from setpoint.train.build.components import build_components, data_line
from setpoint.train.build.data import planned_in_words, where_in_data
from setpoint.train.build.process import device_line, settings_of
from setpoint.train.callbacks.build import added_callbacks, build_callbacks
from setpoint.train.callbacks.watching import AlertCallback
from setpoint.train.config import Job
from setpoint.train.contract import describe_accepted
from setpoint.train.environment import compare_with_record
from setpoint.train.evaluation.best_metric import best_metric_of
from setpoint.train.from_python import Overrides, Source, callbacks_of, job_of, named
from setpoint.train.loop import Callback, Loop
from setpoint.train.metrics import LossMean
from setpoint.train.position import Position, is_over
from setpoint.train.record.bad_batches import BadBatches
from setpoint.train.record.context import Outcome
from setpoint.train.record.frozen import FrozenParameters
from setpoint.train.record.healing import alike, heal_from_others
from setpoint.train.record.load import load_other
from setpoint.train.record.ranks import refuse_alike
from setpoint.train.record.refuse import refuse
from setpoint.train.record.remote import bring_back, would_fetch
from setpoint.train.record.rollback import roll_back
from setpoint.train.record.session import (
    build_failures_logged,
    close_run,
    failures_recorded,
    open_run,
    progress_of,
    resume,
    run_loop,
)
from setpoint.train.record.state import restore, states_of
from setpoint.train.record.uploading import report_uploads
from setpoint.train.record.watching import alerts_of
from setpoint.train.run_name import find_run
from setpoint.train.run_status import command_again, kept_lines, outlook, watch_limits
from setpoint.train.step_errors import explain_oom


def train(
    job: Source,
    directory: str | Path | None = None,
    accept: Sequence[str] = (),
    stop: StopRequest | None = None,
    until: int | None = None,
    *,
    overrides: Overrides = (),
    data: Iterable[Any] | None = None,
    callbacks: Iterable[Callback] = (),
) -> Outcome:
    """Train a job, or go on with it where its newest whole checkpoint is.

    Arguments:
        job: a job, resolved or not, a composition of one, or the name of a preset, a file, a run
            directory or `module:function`.
        directory: the run directory; if None that of the run with this configuration, or with
            this one but for its duration, else workspace/experiment/name-fingerprint.
        stop: its `request` ends the run after the present step, from any thread; None where
            signals alone do.
        until: the step after which the session ends as on a request to stop, where the run is not
            over before; None for no such step.
        overrides: words as on the command line, such as `["optimizer.lr=1e-3"]`, or a mapping, such
            as `{"optimizer.lr": 1e-3}`.
        data: documents in memory to train on, in place of `data.sources`: a list of str, rows with
            the key text or of conversations, a `datasets.Dataset` or a DataFrame of these.
        callbacks: further callbacks; they are part of no record.

    Raises:
        SetpointError: if the configuration and the record contradict each other, the data cannot
            be read, or the directory is in use. Nothing is written then.
        RunError: if the run itself fails.
        KeyboardInterrupt: if a signal arrives before the first step, or Ctrl-C a second time.
    """
    # Signals are answered from here on, while the data is read, too.
    began = time.time()
    _refuse_arguments(directory, until, stop, accept)
    job, given = job_of(job, overrides, data)
    directory = given if directory is None else directory
    accept = [accept] if isinstance(accept, str) else accept
    objects = callbacks_of(callbacks)
    with stop or active() or StopRequest() as stop, joined(job.parallel), ExitStack() as ending:
        world = world_of(job.parallel)
        shown = progress_of(job, world)
        ending.callback(shown.stop)
        found = None
        if directory is None and job.seed is not None:
            found = world.on_main(partial(find_run, job))
        fetched = bring_back(job, directory or found, world, shown.note)
        plan = refuse_alike(world, job, directory, accept, found)
        job = plan.job
        alerts = ending.enter_context(alerts_of(job, world, plan.path, shown))
        ending.enter_context(settings_of(job))
        shown.note(device_line(job, world.device))
        stop.resumable, stop.grace = True, job.resilience.grace_period
        again = command_again(job, plan.path)
        stop.outlook = partial(outlook, plan.path / "checkpoints", again=again)
        stop.watch()
        watch_limits(stop, job, plan.path)
        with build_failures_logged(job, plan.path, world), explain_oom(job):
            parts = build_components(job, plan.begins_anew, shown.work, *plan.kept, world)
        began = stop.began or began
        names = [named(callback) for callback in objects]
        with (
            open_run(plan, parts, stop, shown, began, names) as run,
            failures_recorded(run) as loops,
        ):
            report_uploads(fetched, run.events, run.progress)
            added = added_callbacks(run)
            start = resume(run)
            for line in kept_lines(job, plan.kept):
                run.progress.note(line)
            called = [*build_callbacks(run, start), *added, *objects]
            if alerts is not None:
                run.events.listeners.append(alerts.heard)
                called.append(AlertCallback(alerts))
            back = partial(roll_back, run, start)
            check = None
            if job.resilience.liveness_every.unit != "never":
                check = LivenessCheck(world.size, job.parallel.step_timeout)
            keep = None
            if number := job.resilience.bad_batches:
                keep = BadBatches(run.directory, number, world, run.events, run.progress).save
            at, ended = start.position, start.ended
            loop = Loop(
                job, parts, called, stop, at, ended, back, check, keep, until, start.metrics
            )
            loops.append(loop)
            if job.parallel.torchft is not None:
                groups = ReplicaGroups(
                    job.parallel.torchft, job.parallel.timeout, alike(job), parts.world
                )
                parts.groups = ending.enter_context(groups)
                heal_from_others(run, start, loop, groups)
            run_loop(run, loop)
            return close_run(run, start, loop)


def _refuse_arguments(directory: object, until: object, stop: object, accept: object) -> None:
    if directory is not None and not isinstance(directory, str | Path):
        raise SetpointError(f"train: directory is a path or None; got {directory!r}")
    if until is not None and (type(until) is not int or until < 1):
        raise SetpointError(f"train: until is a step, from 1 on, or None; got {until!r}")
    if stop is not None and not isinstance(stop, StopRequest):
        raise SetpointError(f"train: stop is a StopRequest or None; got {stop!r}")
    if not isinstance(accept, str) and (
        not isinstance(accept, Sequence) or not all(isinstance(each, str) for each in accept)
    ):
        raise SetpointError(f"train: accept is a list of fields or sections; got {accept!r}")


def rehearse(
    job: Job, directory: str | Path | None = None, accept: Sequence[str] = ()
) -> list[tuple[str, str]]:
    """Do what `train` does before its first write, refuse what it refuses, and write nothing.

    The data is read and the model built, and the newest checkpoint of a run is loaded into it.

    Raises:
        SetpointError: as `train` does.
        RunError: if all checkpoints are damaged.
    """
    found = directory if directory is not None or job.seed is None else find_run(job)
    fetches = would_fetch(job, found)
    plan = refuse(job, directory, accept)
    job, accepted = plan.job, plan.accepted
    run = plan.looked_at
    damaged: list[str] = []
    with settings_of(job), ExitStack() as ending:
        shown = progress_of(job, World(choose_device(job.parallel)))
        ending.callback(shown.stop)
        with explain_oom(job):
            parts = build_components(job, plan.begins_anew, shown.work, *plan.kept)
        if accepted is not None:
            accepted, _ = compare_with_record(run, accepted, parts, plan.job, plan.accept)
        newest = CheckpointStore(run.checkpoints).load(
            "auto", on_damaged=lambda where, why: damaged.append(f"{where.name}: {why}")
        )
        at, loaded = Position(), None
        best, mean = best_metric_of(job, parts), LossMean(job.tracking.metrics.ema)
        refrozen = accepted is not None and accepted.has("optimizer.frozen")
        states = states_of(job, parts, best, mean, Trackers(), other_frozen=refrozen)
        frozen = FrozenParameters(job, parts)
        if newest is not None:
            at = restore(job, states, frozen.completed(newest))
        elif job.checkpoint.load is not None:
            fetch = Path(ending.enter_context(TemporaryDirectory()))
            loaded, at = load_other(job, parts, states, frozen, into=fetch)
    rows = [("state", _would(job, at, newest is not None))]
    rows.append(("device", device_line(job, parts.device).removeprefix("device: ")))
    rows.append(("data", data_line(job, parts).removeprefix("data: ")))
    if fetches is not None:
        rows.append(("remote", fetches))
    if planned := planned_in_words(job, parts.train):
        rows.append(("planned", planned))
    if at.step:
        rows.append(("data position", where_in_data(job, parts.feed.state_dict())))
    rows += [("duration", str(job.duration))]
    if accepted is not None:
        rows += [("changed", line) for line in describe_accepted(accepted)]
    rows += [("loaded", line) for line in (loaded.lines() if loaded else ())]
    rows += [("note", line) for line in kept_lines(job, plan.kept)]
    return rows + [("damaged", line) for line in damaged]


def _would(job: Job, at: Position, resumes: bool) -> str:
    if resumes and is_over(job.duration, at):
        return f"finished at step {at.step}: nothing would be trained"
    return f"would {'resume' if resumes else 'start'} at step {at.step}"
