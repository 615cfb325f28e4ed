"""The report that a run leaves in its directory."""

from __future__ import annotations

from contextlib import suppress

from setpoint.config import RunError
from setpoint.report.page.write import write_run_report
from setpoint.train.record.context import Run

QUICK = 32 * 2**20
"""Bytes of metrics that a report is made of in about 2 s, for which a process that is told to stop
has time."""


def write_report(run: Run) -> None:
    """Write `report.html` at the end of a session, on the main rank; it never fails a run."""
    if not (run.job.tracking.report and run.parts.world.is_main):
        return
    path, metrics = run.directory.path, run.directory.metrics
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
