"""A session of a run: opened, brought to where the run is, and closed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from shutil import rmtree
from typing import Any

from setpoint.checkpoint.layout import directory_name
from setpoint.checkpoint.loading import Checkpoint
from setpoint.checkpoint.pointers import read_pointer
from setpoint.checkpoint.store import CheckpointStore, OnDamaged
from setpoint.config import (
    LOG_OF,
    RunError,
    SetpointError,
    error_in_words,
    fingerprint,
    read_record,
    record_files,
    resolve,
    traceback_to_show,
    was_quit,
    whole_traceback,
)
from setpoint.parallel.hangs import keep_hangs_in
from setpoint.parallel.rank import first_failure
from setpoint.parallel.world import LostRanks, World, described, tells_of_others
from setpoint.resilience.signals import PREEMPTED, StopRequest
from setpoint.shapes.logged import MetricLog
from setpoint.track.chain import Chain, NoChain
from setpoint.track.config import Jsonl
from setpoint.track.display import make_progress
from setpoint.track.events import EventLog, NoEvents
from setpoint.track.heartbeat import Heart
from setpoint.track.heartbeat import Progress as Standing
from setpoint.track.jsonl import read_jsonl
from setpoint.track.progress import Progress
from setpoint.track.progress_log import LoggedProgress
from setpoint.track.redact import declared_secrets, without_values
from setpoint.track.trackers import JSONL, Trackers
from setpoint.train.build.companions import companions_in
from setpoint.train.build.components import Components, data_line
from setpoint.train.build.data import where_in_data
from setpoint.train.build.process import device_line
from setpoint.train.build.utilization import utilization_of
from setpoint.train.config import Job
from setpoint.train.environment import compare_with_record
from setpoint.train.evaluation.best_metric import best_metric_of
from setpoint.train.evaluation.evaluate import scores_in
from setpoint.train.loop import Loop, Phase
from setpoint.train.metrics import LossMean
from setpoint.train.position import Position, is_over
from setpoint.train.record.background import BackgroundStore
from setpoint.train.record.context import Outcome, Run, Start
from setpoint.train.record.frozen import FrozenParameters
from setpoint.train.record.load import load_other, other_frozen, refuse_changed
from setpoint.train.record.ranks import SharedStore, opened
from setpoint.train.record.refuse import Plan, what_is_gone
from setpoint.train.record.remote import fetch_undamaged, finish_uploads
from setpoint.train.record.report import write_report
from setpoint.train.record.start import facts_of, lost_since, write_start
from setpoint.train.record.state import restore, states_of
from setpoint.train.record.uploading import resume_uploads, start_uploads
from setpoint.train.record.watching import sampling, serve
from setpoint.train.run_status import command_again, format_newest, outlook
from setpoint.train.step_errors import explain, explain_oom

FETCHED = "fetched"
"""The folder of a run for the checkpoint of a URL that it starts from, until that is read."""


def progress_of(job: Job, world: World) -> Progress:
    """Choose how a run is shown, which the main rank does alone."""
    mode = job.tracking.progress if world.is_main else "none"
    return make_progress(mode, total_steps=_total_steps(job))


@contextmanager
def open_run(
    plan: Plan,
    parts: Components,
    stop: StopRequest,
    shown: Progress,
    began: float | None = None,
    objects: Sequence[str] = (),
) -> Iterator[Run]:
    """Lock the run directory, compare its data, and open what is written to.

    Arguments:
        shown: shows the run to people.
        began: when this session did, in seconds since 1970; None: now.
        objects: classes of the callbacks that are objects of a program.

    Raises:
        SetpointError: if the data does not belong to the run, or another process writes to the
            directory or has written to it. Nothing of the run is changed then.
    """
    job, world = plan.job, parts.world
    with opened(world, plan.path) as directory, ExitStack() as ending:
        world.on_main(plan.require_unchanged)
        accepted, environment = plan.accepted, {}
        if accepted is not None:
            accepted, environment = compare_with_record(
                directory, accepted, parts, job, plan.accept
            )
        events = EventLog(directory.events) if world.is_main else NoEvents()
        ending.callback(events.close)
        log = directory.logs / _log_name(world)
        progress = LoggedProgress(shown, log, _total_steps(job))
        ending.callback(progress.close)
        progress.log(device_line(job, parts.device))  # which is shown since it is known
        keep_hangs_in(directory.logs)
        heart, beats = None, job.resilience.heartbeat
        if beats is not None:
            heart = Heart(directory.path, beats.every, world.rank, world.size, progress.note)
            ending.enter_context(heart)
        trackers = Trackers()
        ending.callback(trackers.close)
        serve(job, world, trackers, progress)
        system = ending.enter_context(sampling(job, world, directory, progress))
        rows = directory.metrics, directory.events
        chain = Chain(directory.path, *rows) if world.is_main else NoChain()
        ending.callback(chain.close)

        def set_aside(before: Path, now: Path) -> None:
            progress.note(f"{before.name} is set aside as {now.name}, with all its files")
            events.write("set_aside", checkpoint=before.name, to=now.name)

        section = job.checkpoint
        uploads = start_uploads(job, world, directory)
        if uploads is not None:
            ending.callback(uploads.uploads.close)
        store = CheckpointStore(
            directory.checkpoints,
            keep=section.keep,
            keep_every=section.keep_every,
            keep_at=section.at,
            keep_best=section.keep_best,
            writes=section.write,
            on_set_aside=set_aside,
            on_sealed=lambda step, manifest: chain.seal((step, manifest)),
            on_committed=None if uploads is None else uploads.committed,
            protected=frozenset if uploads is None else lambda: uploads.uploads.protected,
        )
        words, count = parts.tokenizer.vocab_size, parts.parameter_count
        use = utilization_of(job, parts.model, words, parts.device, count)
        yield Run(
            job=job,
            record=record_files(job),
            parts=parts,
            directory=directory,
            store=_shared(world, store, job),
            events=events,
            progress=progress,
            trackers=trackers,
            chain=chain,
            stop=stop,
            accepted=accepted,
            environment=environment,
            utilization=use,
            began=time.time() if began is None else began,
            objects=tuple(objects),
            frozen=FrozenParameters(job, parts),
            heart=heart,
            uploads=uploads,
            system=system,
        )


def _shared(world: World, store: CheckpointStore, job: Job) -> SharedStore:
    section = job.checkpoint
    if section.mode == "sync":
        return SharedStore(world, store)
    pinned = section.mode == "async_pinned"
    return BackgroundStore(world, store, section.in_flight, pinned, job.parallel.timeout)


def resume(run: Run) -> Start:
    """Bring the components to where the run is, and write down that a session begins.

    Raises:
        SetpointError: if the checkpoint does not belong to this job.
        RunError: if all checkpoints are damaged, or the record cannot be written.
    """
    job, parts = run.job, run.parts
    best, mean = best_metric_of(job, parts), LossMean(job.tracking.metrics.ema)
    refrozen = run.accepted is not None and run.accepted.has("optimizer.frozen")
    # The data has been compared with the record: a kill may lie between it and a checkpoint.
    metrics = MetricLog()
    states = states_of(job, parts, best, mean, run.trackers, True, refrozen, metrics)
    checkpoint, position, loaded = _newest_checkpoint(run), Position(), None
    if checkpoint is None and run.accepted is not None:
        parts.world.on_main(lambda: _start_again(run))
    if checkpoint is not None:
        position = restore(job, states, checkpoint)
        # What the run began with; files may have moved or changed since.
        parts.companions = companions_in(checkpoint.path) or parts.companions
        run.store.set_aside_after(checkpoint.step)
        for line in other_frozen(parts, checkpoint) if refrozen else ():
            run.progress.note(line)
    elif job.checkpoint.load is not None:
        with _fetching(run) as folder:
            readers = run.store.inner.readers
            loaded, position = load_other(job, parts, states, run.frozen, readers, folder)
            if job.model.pretrained is not None and parts.pretrained is None:
                run.progress.note("model.pretrained is not read: checkpoint.load holds all weights")
            parts.companions = companions_in(loaded.path) or parts.companions
        refuse_changed(run.directory.events, loaded)
    left_out = run.frozen.decide()
    if left_out is not None:
        run.progress.note(left_out)
    if run.uploads is not None:
        resume_uploads(run.uploads, position)
    over, ended, identity = is_over(job.duration, position), None, job
    if not over:
        ended = best.stop_reason(job.evaluation)
        over = ended is not None
        if over and loaded is not None:
            raise SetpointError(
                f"checkpoint.load = {job.checkpoint.load}: {ended}, so that nothing is left to "
                f"train.\nValid: evaluation among checkpoint.exclude, which counts anew"
            )
    if over and run.accepted is not None and run.accepted.learned:
        # What was accepted by name is not trained with any more.
        identity = resolve(read_record(Job, str(run.directory.path))[0])
    resumed_at = None if checkpoint is None else checkpoint.step
    start = Start(position, resumed_at, identity, best, mean, metrics, states, ended, over, loaded)
    if not over:
        run.progress.note(data_line(job, parts))
        if position.step:
            run.progress.note(f"data position: {where_in_data(job, parts.feed.state_dict())}")
    parts.world.on_main(lambda: write_start(run, start))

    def open_trackers() -> None:
        if not parts.world.is_main:
            return
        cut_chain(run)
        if not over:
            run.chain.open(step=position.step, fingerprint=fingerprint(identity))
        facts, note = facts_of(run, start), run.progress.note
        run.trackers.open(job.tracking.trackers, run.directory, facts, position.step, note)

    parts.world.on_main(open_trackers)
    if not over and best.changed:
        changed = ", ".join(best.changed)
        run.progress.note(f"the best is sought anew; its measure has changed: {changed}")
    return start


@contextmanager
def _fetching(run: Run) -> Iterator[Path]:
    """A folder for what is fetched, which is gone when all ranks have read it."""
    folder = run.directory.path / FETCHED
    try:
        yield folder
        run.parts.world.all_of(None)
    finally:
        if run.parts.world.is_main:
            rmtree(folder, ignore_errors=True)


def run_loop(run: Run, loop: Loop) -> None:
    """Run the loop, and record what ends it by force.

    Raises:
        RunError: if the run itself fails.
    """
    root, stop = run.store.root, run.stop
    if run.heart is not None:
        run.heart.look = partial(_standing, loop, root)
    stop.newest = partial(format_newest, root)
    again = command_again(run.job, run.directory.path)
    stop.keeps = stop.resumable = run.job.checkpoint.write
    stop.outlook = partial(outlook, root, loop.position.step, again, stop.keeps)
    if stop.is_deaf:
        run.progress.note(
            "training runs in a thread that is not the main one, where Python takes no signals: "
            "StopRequest.request() stops it"
        )
    try:
        with run.progress, explain_oom(run.job):
            loop.run()
    except SystemExit as error:
        raise RunError(
            f"training was left by {error_in_words(error)}, which no part of a run may raise; a "
            f"callback ends a run by loop.end(reason)"
        ) from error
    except Exception as error:
        if was_quit(error):
            left = f"the last steps are not saved. {stop.newest()}" if stop.busy else stop.outlook()
            raise KeyboardInterrupt(f"quit in the debugger: {left}") from error
        shown = explain(error)
        if shown is None:
            raise
        raise shown from error


@contextmanager
def failures_recorded(run: Run) -> Iterator[list[Loop]]:
    """Keep the traceback of what ends a session by force: in this rank's log, and in the events.

    Returns:
        a context; the list takes the loop, which knows the step.
    """
    loops: list[Loop] = []
    try:
        yield loops
    except Exception as error:
        # A run that is recorded has begun, and is not only refused.
        begun = bool(loops) or (isinstance(error, RunError) and run.directory.config.exists())
        if begun or not isinstance(error, SetpointError) or traceback_to_show(error):
            _record_failure(run, error, loops[0].position if loops else None)
        raise


@contextmanager
def build_failures_logged(job: Job, path: Path, world: World) -> Iterator[None]:
    """Keep the traceback of what fails before the run directory is open, unless it is a refusal.

    Arguments:
        path: the run directory, of which nothing but the log is made then.
    """
    try:
        yield
    except Exception as error:
        if not was_quit(error) and (
            not isinstance(error, SetpointError) or traceback_to_show(error)
        ):
            with suppress(OSError, RunError):
                (path / "logs").mkdir(parents=True, exist_ok=True)
                log = LoggedProgress(Progress(), path / "logs" / _log_name(world), None)
                keep_in_log(log, error, declared_secrets(job))
                log.close()
        raise


def _log_name(world: World) -> str:
    return f"rank-{world.rank}.log"


def _record_failure(run: Run, error: Exception, at: Position | None) -> None:
    known = [*declared_secrets(run.job)]
    keep_in_log(run.progress, error, known)
    details: dict[str, Any] = {"error": described(error), "traceback": whole_traceback(error)}
    other = first_failure() if run.parts.world.is_main else None
    if other is not None and (isinstance(error, LostRanks) or tells_of_others(error)):
        details = {"rank": other.rank, "error": other.error, "traceback": other.frames}
    if at is not None:
        details = {"step": at.step, "seconds": round(at.seconds, 3), **details}
    run.events.write("fault", **without_values(details, known))
    with suppress(SetpointError):  # what ends the run is said, whatever else fails
        run.chain.seal()
    write_report(run)


def keep_in_log(progress: LoggedProgress, error: Exception, secrets: Iterable[str]) -> None:
    """Write all frames of an error into a rank's log, which the error names from then on."""
    text = without_values(whole_traceback(error), secrets)
    with suppress(RunError):  # what ends the run is said, whatever else fails
        progress.log(f"failed:\n{text}")
        with suppress(AttributeError):  # of a class with slots
            setattr(error, LOG_OF, str(progress.path))


def _standing(loop: Loop, root: Path) -> Standing:
    """What this rank does, for its heartbeat, whose thread calls it."""
    phase = {Phase.EVALUATE: "evaluate", Phase.KEEP: "save"}.get(loop.doing, "step")
    loss = None if loop.result is None else loop.result.loss
    try:
        newest = read_pointer(root, "latest")
    except SetpointError:  # which the run itself says where it matters
        newest = None
    name = None if newest is None else directory_name(newest)
    return Standing(phase, loop.position.step, loss, name)


def close_run(run: Run, start: Start, loop: Loop) -> Outcome:
    """Record how the session ended."""
    # A run whose last evaluation was cut short is not finished.
    status = 0 if loop.is_over and start.best.due is None else run.stop.status
    reason = loop.ended
    if loop.is_at_limit and not loop.is_over and not status:
        at, status = loop.position.step, PREEMPTED
        reason = f"stopped after step {loop.until}, as it was asked to"
        if loop.until is not None and at > loop.until:
            reason = f"nothing was trained: it was to stop after step {loop.until}, and is at {at}"
    why = {} if reason is None else {"reason": reason}
    if status and run.stop.signal is not None:
        why["signal"] = run.stop.cause
    at, loss, scores = loop.position, start.mean.last, loop.scores
    if loss is None or not scores:  # of the sessions before
        rows = _rows_at(run.directory.metrics, at.step)
        loss = rows["train"].get("mean_loss") if loss is None and "train" in rows else loss
        scores = scores or (scores_in(rows["evaluation"]) if "evaluation" in rows else {})
    run.chain.seal(events_alone=False)
    run.events.write("end", step=at.step, seconds=round(at.seconds, 3), status=status, **why)
    write_report(run)
    # The head of a run that was finished before stays what was printed then.
    run.chain.seal(events_alone=not start.is_over)
    finish_uploads(run, done=status == 0)
    return Outcome(
        directory=run.directory.path,
        status=status,
        job=start.identity,
        started=start.position,
        ended=at,
        loss=loss,
        loss_steps=start.mean.last_steps,
        scores=scores,
        reason=reason,
        cause=run.stop.cause,
        parts=run.parts,
        head=run.chain.head,
    )


def _total_steps(job: Job) -> int | None:
    """After how many steps a run ends; None if something else ends it."""
    steps = job.duration.in_unit("steps")
    return None if steps is None else int(steps)


def _newest_checkpoint(run: Run) -> Checkpoint | None:
    """Load the newest whole checkpoint, naming the damaged ones that are passed over."""
    run.store.prepare()
    passed: list[str] = []
    report = report_damage(run)

    def on_damaged(path: Path, reason: str) -> None:
        passed.append(reason)
        report(path, reason)

    found: Checkpoint | None = None
    try:
        found = run.store.load(on_damaged)
    except SetpointError:
        # Where all are damaged here, those at a URL may do.
        if not passed or not fetch_undamaged(run, None):
            raise
        found = run.store.load(report)
    else:
        if passed and fetch_undamaged(run, found and found.step):
            found = run.store.load(report)
    if found is None:
        return None
    run.progress.note(f"resuming {run.directory.path} at step {found.step}")
    return run.frozen.completed(found)


def cut_chain(run: Run) -> None:
    """Drop the rows from the chain that the trackers are about to drop."""
    if any(isinstance(each, Jsonl) for each in run.job.tracking.trackers):
        run.chain.cut(run.trackers.states[JSONL]["offset"])


def report_damage(run: Run) -> OnDamaged:
    """Note and record each damaged checkpoint that is passed over."""

    def report(path: Path, reason: str) -> None:
        run.progress.note(f"{path.name} is corrupt and is skipped: {reason}")
        run.events.write("damaged", checkpoint=path.name, reason=reason)

    return report


def _start_again(run: Run) -> None:
    """Begin a run anew that has a record and no checkpoint."""
    path = run.directory.path
    gone = what_is_gone(path)
    if gone is None:
        begin = "at step 0" if run.job.checkpoint.load is None else "from checkpoint.load"
        run.progress.note(f"{path} has no checkpoint yet: it starts again {begin}")
        return
    metrics, to, lost = run.directory.metrics, None, lost_since(run, Position(), 0)
    if metrics.exists():
        run.chain.cut(0)
        to = next(
            place
            for number in count(1)
            if not (place := metrics.with_name(f"metrics.{number}.jsonl")).exists()
        )
        metrics.rename(to)
    kept = f"; its metrics are kept as {to.name}" if to is not None else ""
    run.progress.note(f"{path} {gone}: it starts over at step 0{kept}")
    run.events.write("restart", step=0, metrics=to and to.name, **lost)


def _rows_at(path: Path, step: int) -> dict[str, dict[str, Any]]:
    """The rows of a step by kind."""
    rows = read_jsonl(path, damaged=[]) if path.exists() else []
    return {row["kind"]: row for row in rows if row.get("step") == step and "kind" in row}
