"""Record of a session: the locked directory, its writers, and the event of its start."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from setpoint.checkpoint.folder import list_checkpoints
from setpoint.checkpoint.store import CheckpointStore
from setpoint.config import (
    ORIGINS,
    RunError,
    SetpointError,
    cautions_of,
    fingerprint,
    log_of,
    record_files,
    traceback_to_show,
)
from setpoint.config.draft.walk import dropped_values, overridden
from setpoint.config.values.user_code import LOG_OF, traceback_of, was_quit
from setpoint.parallel.hangs import keep_hangs_in
from setpoint.parallel.process_group import LostRanks, tells_of_others
from setpoint.parallel.rank import first_failure
from setpoint.parallel.world import World, described
from setpoint.report.goodput import dropped
from setpoint.report.page.html import write_run_report
from setpoint.track.config import MARK
from setpoint.track.console import time_of
from setpoint.track.jsonl import EventLog, NoEvents, readable_rows
from setpoint.track.progress import LoggedProgress, Progress
from setpoint.track.redact import declared_secrets, without_values
from setpoint.track.run_directory import RunDirectory
from setpoint.track.trackers import JSONL, RunFacts, Trackers
from setpoint.train.build.job_data import where_in_data
from setpoint.train.build.job_parameters import rows_of
from setpoint.train.build.utilization import utilization_of
from setpoint.train.contract import Accepted, describe_accepted, describe_idle
from setpoint.train.opening import device_line, final_step, require_unchanged
from setpoint.train.position import Position
from setpoint.train.provenance import (
    compare_with_record,
    keep_diffs,
    write_data,
    write_environment,
)
from setpoint.train.run_name import identity_mark
from setpoint.train.session import Run
from setpoint.train.step_errors import explain_oom
from setpoint.version import VERSION


@contextmanager
def open_record(run: Run) -> Iterator[None]:
    """Lock the run directory, compare its data, and open the writers.

    An error that ends the session is recorded in this rank's log and in the events.

    Raises:
        SetpointError: if the data is not that of the run, or another process writes or has written
            to the directory. The run is unchanged then.
    """
    job, world, section = run.job, run.world, run.job.checkpoint
    with locked_directory(world, run.directory) as files, ExitStack() as ending:
        world.on_main(lambda: require_unchanged(run))
        run.files, run.environment = files, {}
        if run.accepted is not None:
            run.accepted, run.environment = compare_with_record(
                files, run.accepted, run.components, job, run.accept
            )
        run.events = EventLog(files.events) if world.is_main else NoEvents()
        ending.callback(run.events.close)
        run.progress = LoggedProgress(run.shown, files.logs / _log_name(world), final_step(job))
        ending.callback(run.progress.close)
        run.progress.log(device_line(job, world.device))  # which is shown since it is known
        keep_hangs_in(files.logs)
        run.trackers = Trackers()
        ending.callback(run.trackers.close)
        trackers = job.tracking.trackers if world.is_main else ()
        world.on_main(lambda: run.trackers.build(trackers, files))

        def set_aside(before: Path, now: Path) -> None:
            run.progress.note(f"{before.name} is set aside as {now.name}, with all its files")
            run.events.write("set_aside", checkpoint=before.name, to=now.name)

        is_async = section.mode != "sync"
        run.store = CheckpointStore(
            files.checkpoints,
            world,
            in_flight=section.in_flight if is_async else 0,
            pinned=section.mode == "async_pinned",
            timeout=job.parallel.timeout,
            keep=section.keep,
            keep_every=section.keep_every,
            keep_at=section.at,
            keep_best=section.keep_best,
            writes=section.save,
            on_set_aside=set_aside,
        )
        run.record = record_files(job)
        words, count = run.components.tokenizer.vocab_size, run.components.parameter_count
        run.utilization = utilization_of(job, run.components.model, words, world.device, count)
        try:
            yield
        except Exception as error:
            # A run that is recorded has begun, and is not only refused.
            begun = isinstance(error, RunError) and run.files.config.exists()
            if (
                run.loop
                or begun
                or not isinstance(error, SetpointError)
                or traceback_to_show(error)
            ):
                _record_failure(run, error)
            raise


@contextmanager
def locked_directory(world: World, path: Path) -> Iterator[RunDirectory]:
    """The run directory, locked by the main rank, and read-only for the others.

    If no run was recorded, as after a refused first start, it is removed at the end, unless it has
    stacks of a hanging rank.

    Raises:
        SetpointError: see `RunDirectory.create`; on all ranks.
    """
    made: list[RunDirectory] = []

    def create() -> bool:
        made.append(RunDirectory.create(path))
        return made[0].is_new

    is_new = world.on_main(create)
    with made[0] if made else RunDirectory(path, None, is_new) as directory:
        is_refused = True
        try:
            yield directory
        except BaseException as error:
            # What the log says of a failure is wanted; a refusal says all of it.
            is_refused = isinstance(error, SetpointError | KeyboardInterrupt) and not log_of(error)
            raise
        finally:
            if made and is_new and is_refused and not _is_of_use(directory):
                directory.withdraw()


def _is_of_use(directory: RunDirectory) -> bool:
    """True if a directory has checkpoints, or stacks of hanging ranks."""
    try:
        stacks = any(os.path.getsize(file) for file in directory.logs.glob("*.stacks"))
        return stacks or bool(list_checkpoints(directory.checkpoints))
    except OSError:  # another rank removes an empty file, or the disk fails
        return True


@contextmanager
def log_failures(run: Run) -> Iterator[None]:
    """Log the traceback of a failure before the run directory is open, unless it is a refusal.

    Only the log is created.
    """
    try:
        with explain_oom(run.job):
            yield
    except Exception as error:
        if not was_quit(error) and (
            not isinstance(error, SetpointError) or traceback_to_show(error)
        ):
            with suppress(OSError, RunError):
                logs = run.directory / "logs"
                logs.mkdir(parents=True, exist_ok=True)
                log = LoggedProgress(Progress(), logs / _log_name(run.world), None)
                keep_in_log(log, error, declared_secrets(run.job))
                log.close()
        raise


def _log_name(world: World) -> str:
    return f"rank-{world.rank}.log"


def _record_failure(run: Run, error: Exception) -> None:
    known = [*declared_secrets(run.job)]
    keep_in_log(run.progress, error, known)
    details: dict[str, Any] = {
        "error": described(error),
        "traceback": traceback_of(error, whole=True),
    }
    other = first_failure() if run.world.is_main else None
    if other is not None and (isinstance(error, LostRanks) or tells_of_others(error)):
        details = {"rank": other.rank, "error": other.error, "traceback": other.frames}
    if run.loop is not None:
        position = run.loop.position
        details = {"step": position.step, "seconds": round(position.seconds, 3), **details}
    run.events.write("fault", **without_values(details, known))
    write_report(run)


def keep_in_log(progress: LoggedProgress, error: Exception, secrets: Iterable[str]) -> None:
    """Write all frames of an error to a rank's log, and name the log in the error."""
    text = without_values(traceback_of(error, whole=True), secrets)
    with suppress(RunError):  # what ends the run is said, whatever else fails
        progress.log(f"failed:\n{text}")
        with suppress(AttributeError):  # of a class with slots
            setattr(error, LOG_OF, str(progress.path))


BEGINNINGS = ("start", "resume", "restart", "rollback")
"""Events after which earlier steps may be repeated."""


def write_start(run: Run) -> None:
    """Write the record of a new run, or the event of a resume.

    Raises:
        RunError: if it cannot be written.
    """
    facts = _facts(run)
    for line in (*_notes(run), *(run.loaded.lines() if run.loaded else ())):
        run.progress.note(line)
    if run.accepted is None:
        for value in dropped_values(run.job):
            run.progress.note(f"dropped: {value}")
        run.events.write("start", step=run.started.step, **facts)
        _write_loaded(run)
        write_environment(run.files, run.components, run.job)
        _write_config(run)
        return
    accepted = run.accepted
    if run.had_nothing_left:
        notes, kept = [*describe_idle(accepted), _finished(run, accepted)], []
        accepted = replace(accepted, data=())
    else:
        notes, kept = describe_accepted(accepted), accepted.differences
    for line in notes:
        run.progress.note(line)
    # Before the record changes: after a kill in between, the difference would be lost.
    run.events.write(
        "resume",
        step=run.started.step,
        **lost_since(run, run.started, run.trackers.states[JSONL]["offset"]),
        data_position=where_in_data(run.job, run.components.feed.state_dict()),
        **facts,
        accepted=[difference.to_json() for difference in kept],
        **({"data": list(accepted.data)} if accepted.data else {}),
        environment=keep_diffs(run.files, run.environment),
    )
    _write_loaded(run)


def _write_loaded(run: Run) -> None:
    if run.loaded is not None:
        run.events.write("load", **run.loaded.to_json())


def facts_of(run: Run) -> RunFacts:
    """The facts of a run for its trackers, after its start was written."""
    directory = run.files
    with directory.events.open("rb") as file:
        first = file.readline()
    session = sum(row.get("event") in BEGINNINGS for row in readable_rows(directory.events))
    environment = run.environment or json.loads((directory.path / "environment.json").read_bytes())
    return RunFacts(
        run_id=hashlib.sha256(directory.name.encode() + first).hexdigest()[:32],
        name=directory.name,
        experiment=run.job.experiment,
        fingerprint=fingerprint(run.identity),
        config=json.loads(run.record[directory.config.name]),
        origins=json.loads(run.record[ORIGINS]),
        environment=environment,
        session=session,
        description=run.job.description,
    )


def change_record(run: Run) -> None:
    """Update configuration and data in the record, after the first step with them."""
    if run.accepted is not None and run.best.changed:
        run.store.forget_best()
    run.world.on_main(lambda: _write_changed(run))


def _write_changed(run: Run) -> None:
    if run.accepted is not None and run.accepted.data:
        write_data(run.files, run.components)
    _write_config(run)


def _write_config(run: Run) -> None:
    mark = run.directory / identity_mark(run.job)
    try:
        for other in run.directory.glob(f"{MARK}*"):
            if other != mark:
                other.unlink()
        if not os.path.lexists(mark):
            mark.open("x").close()
    except OSError as error:
        raise RunError(f"{mark} cannot be written: {error.strerror}") from error
    run.files.write_record(run.record, type(run.job).__setpoint__.schema)


def lost_since(
    run: Run, position: Position, offset: int, reached: Position | None = None
) -> dict[str, Any]:
    """Entry of an event for lost steps after a checkpoint, for goodput.

    Arguments:
        position: of the checkpoint.
        offset: length of `metrics.jsonl` when it was saved.
        reached: current position; None to read it from the record.

    Returns:
        `dropped`, or nothing if no step is lost.
    """
    lost = dropped(
        readable_rows(run.files.events) if reached is None else [],
        readable_rows(run.files.metrics, offset),
        position.step,
        position.seconds,
        None if reached is None else (reached.step, reached.seconds),
    )
    return {} if lost is None else {"dropped": lost}


def _facts(run: Run) -> dict[str, Any]:
    """The facts of the job in the event of a start or a resume."""
    facts: dict[str, Any] = {
        "began": time_of(run.began),
        "seconds": round(run.started.seconds, 3),
        "fingerprint": fingerprint(run.identity),
        "version": VERSION,
    }
    if run.components.pretrained is not None:
        facts["pretrained"] = run.components.pretrained
    facts["groups"] = [
        row.to_json()
        for row in rows_of(run.job.optimizer, run.components.model, run.components.all_trained)
    ]
    if run.components.adapter is not None:
        facts["adapter"] = run.components.adapter.to_json()
    facts["utilization"] = run.utilization.record()
    if run.program_callbacks:
        facts["callbacks"] = list(run.program_callbacks)
    cautions = cautions_of(run.identity)
    if cautions:
        facts["cautions"] = [caution.to_json() for caution in cautions]
    return facts


def _notes(run: Run) -> Iterator[str]:
    """Notes on the job, before it trains."""
    grown = (run.components.pretrained or {}).get("grown")
    if grown is not None:
        yield (
            f"model: the vocabulary grows from {grown['from']} to {grown['to']} tokens; new rows "
            f"begin as the mean of those of {run.job.model.pretrained}"
        )
    if run.components.adapter is not None:
        yield f"adapter: {run.components.adapter.line()}"
    use = run.utilization
    if use.unknown is not None and use.peak is not None:
        yield f"mfu will be null: {use.unknown}"
    for caution in cautions_of(run.identity):
        yield f"caution: {caution.line()}"
    if lost := [
        name for name in _program_callbacks_before(run) if name not in run.program_callbacks
    ]:
        yield (
            f"callbacks that the session before had as objects, train(callbacks=...), are in no "
            f"record and not called: {', '.join(lost)}"
        )
    for line in overridden(run.job):
        yield f"overridden: {line}"


def _program_callbacks_before(run: Run) -> list[str]:
    """The classes of callback objects of the last session."""
    if run.accepted is None:
        return []
    rows = [row for row in readable_rows(run.files.events) if row.get("event") in BEGINNINGS]
    names = rows[-1].get("callbacks") if rows else None
    return [str(name) for name in names] if isinstance(names, list) else []


def _finished(run: Run, accepted: Accepted) -> str:
    """Note on a finished run, with the step and the reason."""
    nothing = "nothing is left to train" + "; nothing accepted" * accepted.learned
    finished = f"{run.directory} is finished at step {run.resumed_at}"
    if run.reason is not None:
        finished += f": {run.reason}"
        nothing += (
            "; to train further, raise evaluation.early_stopping.patience or set "
            "evaluation.early_stopping to null"
        )
    return f"{finished}; {nothing}"


QUICK = 32 * 2**20
"""Bytes of metrics for which a report takes about 2 s, acceptable during a requested stop."""


def write_report(run: Run) -> None:
    """Write `report.html` at the end of a session, on the main rank; it never fails a run."""
    if not (run.job.tracking.report and run.world.is_main):
        return
    path, metrics = run.directory, run.files.metrics
    if run.stop.requested and metrics.exists() and metrics.stat().st_size > QUICK:
        run.progress.note(f"report.html waits for the end; until then: setpoint report {path}")
        return
    try:
        write_run_report(path)
    except Exception as error:  # what is wrong with a report is no reason to lose a run
        reason = str(error) if isinstance(error, RunError) else repr(error)
        run.progress.note(f"report.html is not written: {reason}")
        with suppress(RunError):  # the disk may be full for this, too
            run.events.write("report_failed", error=reason)
