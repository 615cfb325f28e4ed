"""End of a session: its failure or last events, its report and its summary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from setpoint.config import RunError, SetpointError, fingerprint, traceback_to_show
from setpoint.config.record.record import SHORT
from setpoint.config.values.user_code import LOG_OF, traceback_of, was_quit
from setpoint.parallel.process_group import LostRanks, is_about_other_ranks
from setpoint.parallel.rank import first_failure
from setpoint.parallel.world import described
from setpoint.report.page.html import write_run_report
from setpoint.resilience.signals import PREEMPTED
from setpoint.track.console import print_table, short_time
from setpoint.track.jsonl import readable_rows
from setpoint.track.progress import LoggedProgress, Progress
from setpoint.track.redact import declared_secrets, without_values
from setpoint.train.engine import explain_oom
from setpoint.train.evaluation.scores import scores_in
from setpoint.train.loop import Loop
from setpoint.train.run_status import THE_SAME, command_again, goodput_of, stop_message
from setpoint.train.session import Run
from setpoint.train.verdict import skipped_metrics


def finish(run: Run, loop: Loop) -> Run:
    """Record how the session ended."""
    # A run whose last evaluation was interrupted is not finished.
    status = 0 if loop.is_over and run.evaluations.due is None else run.stop.status
    reason = loop.end_reason
    if loop.is_at_limit and not loop.is_over and not status:
        step, status = loop.position.step, PREEMPTED
        reason = f"stopped after step {loop.until}, as requested"
        if loop.until is not None and step > loop.until:
            reason = (
                f"nothing was trained: it was to stop after step {loop.until}, but is already at "
                f"{step}"
            )
    why = {} if reason is None else {"reason": reason}
    if status and run.stop.signal is not None:
        why["signal"] = run.stop.cause
    position, loss, scores = loop.position, run.mean.last, loop.scores
    if position.step and _skipped(run) == position.step:
        why["untrained"] = f"all {position.step:,} steps were skipped: nothing was trained"
        run.progress.note(f"warning: {why['untrained']}")
    if loss is None or not scores:  # of earlier sessions
        rows = {
            row["kind"]: row
            for row in readable_rows(run.files.metrics)
            if row.get("step") == position.step and "kind" in row
        }
        loss = rows["train"].get("mean_loss") if loss is None and "train" in rows else loss
        scores = scores or (scores_in(rows["evaluation"]) if "evaluation" in rows else {})
    run.status, run.final_position, run.reason, run.cause = status, position, reason, run.stop.cause
    run.loss, run.scores = loss, scores
    run.events.write(
        "end", step=position.step, seconds=round(position.seconds, 3), status=status, **why
    )
    write_report(run)
    for callback in run.outer_callbacks:
        callback.recorded(loop, done=status == 0)
    return run


def _skipped(run: Run) -> int:
    """Number of steps skipped in the whole run."""
    components = run.components
    policies = skipped_metrics(components.non_finite, components.spikes)
    return sum(policies.values()) + components.scaler.skipped


@contextmanager
def log_failures(run: Run) -> Iterator[None]:
    """Log the traceback of a failure, except a refusal, before the run directory is open.

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
                log = LoggedProgress(Progress(), logs / f"rank-{run.world.rank}.log", None)
                keep_in_log(log, error, declared_secrets(run.job))
                log.close()
        raise


def record_failure(run: Run, error: Exception) -> None:
    """Write an error that ends the session to this rank's log, the events and the report."""
    known = [*declared_secrets(run.job)]
    keep_in_log(run.progress, error, known)
    details: dict[str, Any] = {
        "error": described(error),
        "traceback": traceback_of(error, whole=True),
    }
    other = first_failure() if run.world.is_main else None
    if other is not None and (isinstance(error, LostRanks) or is_about_other_ranks(error)):
        details = {"rank": other.rank, "error": other.error, "traceback": other.frames}
    if run.loop is not None:
        position = run.loop.position
        details = {"step": position.step, "seconds": round(position.seconds, 3), **details}
    run.events.write("fault", **without_values(details, known))
    write_report(run)


def keep_in_log(progress: LoggedProgress, error: Exception, secrets: Iterable[str]) -> None:
    """Write all frames of an error to a rank's log, and name the log in the error."""
    text = without_values(traceback_of(error, whole=True), secrets)
    with suppress(RunError):  # the error that ends the run is reported, regardless of others
        progress.log(f"failed:\n{text}")
        with suppress(AttributeError):  # a class with slots
            setattr(error, LOG_OF, str(progress.path))


QUICK = 32 * 2**20
"""Bytes of metrics for which a report takes about 2 s, acceptable during a requested stop."""


def write_report(run: Run) -> None:
    """Write `report.html` at the end of a session, on the main rank; never fails a run."""
    if not (run.job.tracking.report and run.world.is_main):
        return
    path, metrics = run.directory, run.files.metrics
    if run.stop.requested and metrics.exists() and metrics.stat().st_size > QUICK:
        run.progress.note(f"report.html is written at the end; until then: setpoint report {path}")
        return
    try:
        write_run_report(path)
    except Exception as error:  # an error in a report must not end a run
        reason = str(error) if isinstance(error, RunError) else repr(error)
        run.progress.note(f"report.html was not written: {reason}")
        with suppress(RunError):  # the disk may be full, too
            run.events.write("report_failed", error=reason)


ENDINGS = {0: "finished", 130: "interrupted"}


def print_summary(run: Run, stream: TextIO | None = None) -> None:
    """Print the summary of a run: results, speed and directory."""
    job, position, before = run.job, run.final_position, run.started
    state, reason = ENDINGS.get(run.status) or f"stopped by {run.cause}", run.reason
    if reason is not None:
        state = reason if run.status else f"{state} early: {reason}"
    components, skipped = run.components, _skipped(run)
    if position.step and skipped == position.step:
        state = f"{state}, but untrained: all {skipped:,} steps were skipped"
    elif position.step == before.step and not run.status:
        state = f"{state}; this session trained nothing"
    rows = [
        ("state", state),
        ("fingerprint", fingerprint(run.identity)[:SHORT]),
        ("parameters", f"{components.parameter_count:,}"),
        *([] if components.adapter is None else [("adapter", components.adapter.line())]),
        ("steps", f"{position.step:,}" + (f", {skipped:,} of them skipped" if skipped else "")),
        ("tokens", f"{position.tokens:,}"),
        ("epochs", f"{position.epochs:.3f}"),
        ("training time", short_time(position.seconds)),
    ]
    if position.seconds > before.seconds:
        speed = (position.tokens - before.tokens) / (position.seconds - before.seconds)
        rows.append(("tokens/s", f"{speed:,.0f}"))
    if run.loss is not None:
        rows.append(("training loss", f"{run.loss:.4f}"))
    spent = goodput_of(run.directory)
    if spent.share is not None:
        rows.append(("goodput", f"{spent.share:.0%} of {short_time(spent.wall)}: {spent.line()}"))
    rows += [row for callback in run.outer_callbacks for row in callback.summary()]
    rows += [
        (f"{name.replace('_', '-')} {metric}", text)
        for name, score in run.scores.items()
        for metric, text in (
            ("loss", f"{score.loss:.4f} ({score.extent})"),
            ("accuracy", None if score.accuracy is None else f"{score.accuracy:.4f}"),
        )
        if text is not None
    ]
    print_table(f"{job.name}: {run.directory}", rows, stream=stream)
    if run.status:
        again = command_again(job, run.directory)
        if run.loop is not None and run.loop.is_at_limit and again == THE_SAME:
            again = f"{THE_SAME} or call without until"
        root, keeps = run.directory / "checkpoints", job.checkpoint.save
        left = stop_message(root, before.step, again, keeps)
        print(left, file=stream, flush=True)
