"""Copies of a run at a URL: downloaded before it starts, uploaded while it trains."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setpoint.checkpoint.config import Remote
from setpoint.checkpoint.folder import Retention, list_checkpoints
from setpoint.checkpoint.manifest import read_manifest
from setpoint.config import RunError, SetpointError
from setpoint.ops.fetching import bring_back, fetch_undamaged, would_fetch
from setpoint.ops.remote_run import remote_of
from setpoint.ops.uploads import RECORD, UploadReport, Uploads
from setpoint.parallel.world import RemoteRankError, World
from setpoint.train.loop import Callback, Loop, Phase
from setpoint.train.position import Position, is_due
from setpoint.train.run_status import command_again
from setpoint.train.verdict import StepResult

if TYPE_CHECKING:
    from setpoint.train.config import Job
    from setpoint.train.session import Run

LOOK = 1.0
"""Seconds per wait for uploads, below the timeouts of ranks."""


class RemoteCopies(Callback):
    """Copies by `checkpoint.remote`; the main rank uploads, and all ranks download.

    Arguments:
        config: the section.
    """

    # The URL records the resume position before a checkpoint of this session is saved.
    phase = Phase.STEP

    run: Run
    """The opened run."""

    def __init__(self, config: Remote) -> None:
        self.config = config
        self.uploads: Uploads | None = None
        self._saved = Position()  # of the last checkpoint
        self._fetched: list[UploadReport] = []

    def before_open(
        self, job: Job, directory: Path | None, world: World, show: Callable[[str], None]
    ) -> None:
        """Download files missing from the directory."""
        if directory is not None:
            self._fetched = bring_back(job, directory, world, show)

    def rehearsed(self, job: Job, directory: Path | None) -> tuple[str, str] | None:
        """List pending downloads."""
        line = None if directory is None else would_fetch(job, directory)
        return None if line is None else ("remote", line)

    def opened(self, run: Run, stack: ExitStack) -> None:
        """Record downloads, and start uploading."""
        self.run = run
        self._report(self._fetched)
        if not run.world.is_main:
            return
        section, store = run.job.checkpoint, run.store
        self.uploads = uploads = Uploads(
            remote_of(self.config, run.directory),
            run.files.checkpoints,
            record=[run.directory / name for name in RECORD],
            rule=Retention(self.config.keep, section.keep_every, section.at),
            waiting=self.config.waiting,
        )
        stack.callback(uploads.close)
        store.committed.append(self._committed)
        store.protections.append(lambda: uploads.protected)

    def fetch(self, newer_than: int | None) -> bool:
        """Download a valid checkpoint to replace a damaged one."""
        reports: list[UploadReport] = []
        fetched = fetch_undamaged(self.run, newer_than, reports)
        self._report(reports)
        return fetched

    def start(self, loop: Loop) -> None:
        """Continue uploads of an earlier session, and drop obsolete ones."""
        self.rewound(loop)
        if self.uploads is not None:
            self.uploads.add_named()

    def rewound(self, loop: Loop) -> None:
        """Drop uploads that a rollback made obsolete."""
        self._saved = loop.position
        if self.uploads is not None:
            has_any = bool(list_checkpoints(self.uploads.root))
            self.uploads.set_aside_after(loop.position.step if has_any else -1)

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Report and record finished uploads."""
        if self.uploads is not None:
            self._report(self.uploads.reports())

    def recorded(self, loop: Loop, done: bool) -> None:
        """Wait for pending uploads on all ranks, in short rounds, so that no rank times out.

        Raises:
            RunError: an upload is not done in time, and no later session will complete it.
        """
        uploads, world = self.uploads, self.run.world
        ends, is_said = time.monotonic() + self.config.wait_timeout, False
        if uploads is not None:
            uploads.add_named()
            uploads.add_record()

        def is_done() -> bool:
            """True if no upload is pending."""
            assert uploads is not None
            left = ends - time.monotonic()
            return uploads.wait(max(0.0, min(LOOK, left))) or left <= LOOK

        while not world.on_main(is_done):
            if uploads is not None and not is_said:
                is_said = True
                self.run.progress.note(
                    f"waiting up to {self.config.wait_timeout:g} s for the upload of "
                    f"{uploads.left} to {uploads.run.url}; Ctrl-C postpones it to the next session"
                )
            if uploads is not None:
                self._report(uploads.reports())

        def end() -> str:
            assert uploads is not None
            self._report(uploads.reports())
            if uploads.wait(0):
                return ""
            url, why = uploads.run.url, f": {uploads.failure}" if uploads.failure else ""
            self.run.events.write("upload_unfinished", checkpoints=uploads.unsent, url=url)
            again = command_again(self.run.job, self.run.directory)
            return (
                f"{uploads.left}: not uploaded to {url} within checkpoint.remote.wait_timeout = "
                f"{self.config.wait_timeout:g} s{why}. It is saved in {uploads.root}; {again} "
                f"uploads it"
            )

        problem = world.on_main(end)
        if problem and done:
            raise RunError(problem) if world.is_main else RemoteRankError(problem, RunError.status)
        if problem:
            self.run.progress.note(problem)

    def _report(self, reports: Iterable[UploadReport]) -> None:
        """Report and record uploads, downloads and failures."""
        for report in reports:
            if report.note:
                self.run.progress.note(report.note)
            self.run.events.write(report.event, **report.details)

    def _committed(self, step: int, path: Path) -> None:
        """Queue a checkpoint for upload, if due."""
        assert self.uploads is not None
        try:
            numbers: Mapping[str, Any] = read_manifest(path).position
        except SetpointError:
            # The thread detects and reports problems of the checkpoint.
            self.uploads.add(step)
            return
        position = Position(**numbers)
        every = self.config.every
        if every is None or is_due(every, self._saved, position, last=False):
            self.uploads.add(step)
        self._saved = position
