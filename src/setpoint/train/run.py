"""One session of a run: open, build, lock the directory, resume, record, loop, finish."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from setpoint.checkpoint.places import format_newest
from setpoint.checkpoint.store import CheckpointStore
from setpoint.config import RunError, error_in_words
from setpoint.config.values.user_code import was_quit
from setpoint.parallel.hangs import LivenessCheck
from setpoint.parallel.process_group import joined
from setpoint.parallel.world import world_of
from setpoint.resilience.signals import StopRequest, active
from setpoint.track.trackers import Trackers
from setpoint.train.arguments import Overrides, Source, callbacks_of, check_arguments, job_of, named
from setpoint.train.build.assets import fallback_notes
from setpoint.train.build.components import build_components, data_line
from setpoint.train.build.job_data import describe_data_position, planned_in_words
from setpoint.train.callbacks.build_callbacks import (
    build_callbacks,
    early_callbacks,
    package_callbacks,
)
from setpoint.train.config import Job
from setpoint.train.contract import describe_accepted
from setpoint.train.engine import explain, explain_oom
from setpoint.train.finish import finish, log_failures
from setpoint.train.loop import Callback, Loop
from setpoint.train.open import (
    compare_on_all_ranks,
    device_line,
    open_directory,
    open_run,
    place_of,
    progress_of,
    settings_of,
)
from setpoint.train.position import is_over
from setpoint.train.resume import (
    make_states,
    replica_groups,
    restore_or_load,
    resume,
    roll_back,
)
from setpoint.train.run_record import compare_with_record, refuse_outdated, start_record
from setpoint.train.run_status import command_again, stop_message
from setpoint.train.session import Run


def train(
    source: Source,
    overrides: Overrides = (),
    *,
    data: Iterable[Any] | None = None,
    callbacks: Iterable[Callback] = (),
    directory: str | Path | None = None,
    accept: Sequence[str] = (),
    stop: StopRequest | None = None,
    until: int | None = None,
) -> Run:
    """Train a job, or resume it from its newest valid checkpoint.

    Arguments:
        source: a job, resolved or not, a composition of one, or the name of a preset, a file, a run
            directory or `module:function`.
        overrides: words as on the command line, such as `["optimizer.lr=1e-3"]`, or a mapping, such
            as `{"optimizer.lr": 1e-3}`.
        data: in-memory documents to train on, which replace `data.sources`: a list of str, of rows
            with the key text, or of conversations; or a `datasets.Dataset` or DataFrame of such
            rows.
        callbacks: further callbacks; they are not recorded.
        directory: the run directory; None: the directory of the run with this configuration, apart
            from its duration, else workspace/experiment/name-fingerprint.
        stop: its `request` method, callable from any thread, ends the run after the current step;
            None if only signals do.
        until: the step after which the session ends as if a stop was requested, unless the run ends
            earlier; None: no such step.

    Raises:
        SetpointError: the configuration and the record contradict each other, the data cannot be
            read, or the directory is in use. Nothing is written in these cases.
        RunError: the run itself fails.
        KeyboardInterrupt: a signal arrives before the first step, or Ctrl-C a second time.
    """
    began = time.time()
    check_arguments(directory, until, stop, accept)
    job, given = job_of(source, overrides, data)
    directory = given if directory is None else directory
    accept = [accept] if isinstance(accept, str) else accept
    objects = callbacks_of(callbacks)
    # Signals are handled from here on, including while the data is read.
    with stop or active() or StopRequest() as stop, joined(job.parallel), ExitStack() as ending:
        early = [*early_callbacks(job), *objects]
        run = open_run(job, directory, accept, stop, ending, early)
        run.began = stop.began or began
        run.program_callbacks = tuple(named(callback) for callback in objects)
        with log_failures(run):
            refuse_outdated(run)
            run.components = build_components(
                run.job, run.needs_initial_weights, run.shown.work, *run.fallback, run.world
            )
        with open_directory(run), ExitStack() as stack:
            run.outer_callbacks = [*early, *package_callbacks(run)]
            for callback in run.outer_callbacks:
                callback.opened(run, stack)
            resume(run)
            start_record(run)
            run.loop = loop_of(run, [*build_callbacks(run), *run.outer_callbacks], until)
            if run.job.parallel.torchft is not None:
                stack.enter_context(replica_groups(run, run.loop))
            run_loop(run, run.loop)
            return finish(run, run.loop)


def loop_of(run: Run, callbacks: Sequence[Callback], until: int | None) -> Loop:
    """Build the loop of a run, with its rollbacks and liveness checks."""
    job, resilience = run.job, run.job.resilience
    liveness = None
    if resilience.liveness_every.unit != "never":
        liveness = LivenessCheck(run.world.size, job.parallel.step_timeout)
    rollback = partial(roll_back, run)
    return Loop(
        job, run.components, callbacks, run.stop, run.started, run.reason, rollback, liveness,
        until, run.metrics,
    )  # fmt: skip


def run_loop(run: Run, loop: Loop) -> None:
    """Run the loop, and record its failure if there is one.

    Raises:
        RunError: the run itself fails.
    """
    root, stop = run.store.root, run.stop
    stop.newest = partial(format_newest, root)
    again = command_again(run.job, run.directory)
    stop.keeps = stop.resumable = run.job.checkpoint.save
    stop.outlook = partial(stop_message, root, loop.position.step, again, stop.keeps)
    if stop.is_deaf:
        run.progress.note(
            "training does not run in the main thread, so it receives no signals; stop it with "
            "StopRequest.request()"
        )
    try:
        with run.progress, explain_oom(run.job):
            loop.run()
    except SystemExit as error:
        raise RunError(
            f"training was ended by {error_in_words(error)}, which must not be raised inside a "
            f"run; a callback ends a run with loop.end(reason)"
        ) from error
    except Exception as error:
        if was_quit(error):
            raise KeyboardInterrupt(f"quit in the debugger: {stop.consequences()}") from error
        shown = explain(error)
        if shown is None:
            raise
        raise shown from error


def rehearse(
    job: Job, directory: str | Path | None = None, accept: Sequence[str] = ()
) -> list[tuple[str, str]]:
    """Dry run of `train`: everything before the first write, with the same errors.

    The data is read, the model built, and the newest checkpoint of a run loaded.

    Returns:
        labels and values of a table of the planned run.

    Raises:
        SetpointError: as in `train`.
        RunError: all checkpoints are damaged.
    """
    rows: list[tuple[str, str]] = []
    damaged: list[tuple[str, str]] = []
    with joined(job.parallel), ExitStack() as ending:
        world = world_of(job.parallel)
        place = place_of(job, directory, world)
        fetched = [callback.rehearsed(job, place) for callback in early_callbacks(job)]
        run = compare_on_all_ranks(world, job, directory, accept, place)
        job, run.shown, run.trackers = run.job, progress_of(run.job, world), Trackers()
        ending.callback(run.shown.stop)
        ending.enter_context(settings_of(job))
        refuse_outdated(run)
        with explain_oom(job):
            run.components = components = build_components(
                job, run.needs_initial_weights, run.shown.work, *run.fallback, world
            )
        if run.accepted is not None:
            run.accepted, _ = compare_with_record(
                run.files, run.accepted, components, job, run.accept
            )
        make_states(run)
        checkpoint = CheckpointStore(run.files.checkpoints, world).load_newest(
            lambda path, reason: damaged.append(("damaged", f"{path.name}: {reason}"))
        )
        folder = Path(world.on_main(lambda: ending.enter_context(TemporaryDirectory())))
        restore_or_load(run, checkpoint, folder)
        world.all_of(None)  # before the folder is removed
    position, loaded = run.started, run.loaded
    begins = "resume" if checkpoint is not None else "start"
    state = f"would {begins} at step {position.step}"
    if checkpoint is not None and is_over(job.duration, position):
        state = f"finished at step {position.step}: nothing would be trained"
    rows.append(("state", state))
    rows.append(("device", device_line(job, components.device).removeprefix("device: ")))
    rows.append(("data", data_line(job, components).removeprefix("data: ")))
    rows += [row for row in fetched if row is not None]
    if planned := planned_in_words(job, components.train_data):
        rows.append(("planned", planned))
    if position.step:
        rows.append(("data position", describe_data_position(job, components.feed.state_dict())))
    rows.append(("duration", str(job.duration)))
    if run.accepted is not None:
        rows += [("changed", line) for line in describe_accepted(run.accepted)]
    rows += [("loaded", line) for line in (loaded.lines() if loaded else ())]
    rows += [("note", line) for line in fallback_notes(job, run.fallback)]
    return rows + damaged
