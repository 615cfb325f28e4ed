"""Background uploads of checkpoints to a URL."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from threading import Condition
from typing import Any, NamedTuple

from setpoint.checkpoint.folder import (
    PENDING,
    Retention,
    directory_name,
    list_checkpoints,
    readable_pointer,
)
from setpoint.checkpoint.manifest import DamagedCheckpoint, Manifest, read_manifest
from setpoint.config import CONFIG, MINIMAL, ORIGINS, RunError, SetpointError
from setpoint.files.atomic import replacing, write_file
from setpoint.files.threads import Worker
from setpoint.hub.fetch import url_reason
from setpoint.ops.proof import CHAIN
from setpoint.ops.remote_run import RemoteRun
from setpoint.track.config import ENVIRONMENT

LONGEST = 300.0
"""Maximum seconds between two attempts."""


class UploadReport(NamedTuple):
    """A report of the background thread.

    Arguments:
        event: its name in `events.jsonl`.
        details: the details of the event.
        note: a line to show, or empty.
    """

    event: str
    details: dict[str, Any]
    note: str = ""


ALL = Retention(None)


class _Closed(RunError):
    """Raised in the thread when the process is about to exit."""


class Uploads:
    """A thread that uploads the checkpoints of a folder to a URL.

    Failures are reported and retried, with increasing pauses, until the uploads are closed. Queued
    checkpoints are protected from retention; if too many are queued, the oldest is dropped.

    Arguments:
        run: the destination; its `alive` is replaced with this thread's.
        root: the folder of the checkpoints.
        record: files of the run to upload with each checkpoint.
        rule: the retention at the URL.
        waiting: maximum number of queued checkpoints; at least 1.
        pause: seconds after the first failure, doubled after each further one.
    """

    def __init__(
        self,
        run: RemoteRun,
        root: Path,
        *,
        record: Sequence[Path] = (),
        rule: Retention = ALL,
        waiting: int = 2,
        pause: float = 1.0,
    ) -> None:
        self.run, self.root, self.record = run, root, record
        self.rule, self.waiting, self.pause = rule, waiting, pause
        run.alive = self._require_open
        self._reports: deque[UploadReport] = deque()
        self._changed = Condition()
        self._steps: list[int] = []
        self._sent: dict[int, Manifest] = {}
        self._sending: int | None = None
        self._aside: int | None = None
        # Number of requests to upload the record, and of those served by a finished transfer.
        self._asked, self._answered = 0, 0
        self._failure = ""
        self._is_closed = False
        self._worker = Worker("setpoint-uploads")

    def add(self, step: int) -> None:
        """Queue a checkpoint, replacing a queued one of the same step."""
        best = readable_pointer(self.root, "best")
        with self._changed:
            if step in self._sent and not self._is_replaced(step, self._sent[step]):
                return
            self._steps = [other for other in self._steps if other != step] + [step]
            while len(self._steps) > self.waiting + (self._sending is not None):
                # Keep the one being uploaded, and the best, which no later one replaces.
                spare = [e for e in self._steps[:-1] if e not in (self._sending, best)]
                if not spare:
                    break
                self._steps.remove(spare[0])
                name = directory_name(spare[0])
                text = (
                    f"{name} is not uploaded: {self.waiting} newer ones are waiting "
                    f"(remote.waiting)"
                )
                self._report("upload_skipped", text, checkpoint=name)
        self._worker.submit(self._work)

    def add_named(self) -> None:
        """Queue the checkpoints of `latest` and `best`."""
        steps = {readable_pointer(self.root, name) for name in ("best", "latest")}
        for step in sorted(step for step in steps if step is not None):
            self.add(step)

    def set_aside_after(self, step: int) -> None:
        """Mark the checkpoints after `step` as obsolete, at the URL and in the queue.

        Raises:
            RunError: the disk fails.
        """
        with self._changed:
            self._steps = [other for other in self._steps if other <= step]
            self._sent = {number: sent for number, sent in self._sent.items() if number <= step}
            self._aside = step if self._aside is None else min(step, self._aside)
            try:
                write_pending(self.root, self._aside)
            except OSError as error:
                raise RunError(f"{self.root} cannot be written: {error.strerror}") from error
        self._worker.submit(self._work)

    def add_record(self) -> None:
        """Queue the files of the run again."""
        with self._changed:
            self._asked += 1
        self._worker.submit(self._work)

    @property
    def protected(self) -> frozenset[int]:
        """The queued steps, which retention must not remove."""
        with self._changed:
            return frozenset(self._steps)

    @property
    def unsent(self) -> list[str]:
        """The names of queued checkpoints."""
        return [directory_name(step) for step in sorted(self.protected)]

    @property
    def left(self) -> str:
        """Description of pending uploads."""
        return ", ".join(self.unsent) or "the record of the run"

    @property
    def failure(self) -> str:
        """Last error of the service, if nothing has succeeded since."""
        return self._failure

    def reports(self) -> list[UploadReport]:
        """Reports since the last call."""
        reports: list[UploadReport] = []
        while self._reports:
            reports.append(self._reports.popleft())
        return reports

    def wait(self, seconds: float) -> bool:
        """Wait until everything is uploaded.

        Returns:
            whether everything is uploaded.
        """
        with self._changed:
            return self._changed.wait_for(lambda: not self._is_due() or self._is_closed, seconds)

    def close(self) -> None:
        """End the thread after the current piece, without uploading the queue."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._worker.end(patience=5.0)

    def _is_due(self) -> bool:
        return bool(self._steps) or self._aside is not None or self._asked > self._answered

    def _require_open(self) -> None:
        if self._is_closed:
            raise _Closed("the uploads are closed")

    def _work(self) -> None:
        """Upload everything that is due; run by the thread after each change."""
        pause = self.pause
        while self._is_due() and not self._is_closed:
            try:
                self._do_next()
            except _Closed:
                return
            except Exception as error:  # services have their own exceptions
                self._failure = (
                    str(error) if isinstance(error, SetpointError) else url_reason(error)
                )
                self._report(
                    "upload_failed",
                    f"{self.left}: not uploaded to {self.run.url} yet: {self._failure}; tried "
                    f"again in {pause:g} s",
                    checkpoints=self.unsent,
                    error=self._failure,
                )
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closed, pause)
                pause = min(2 * pause, LONGEST)
            else:
                pause, self._failure = self.pause, ""

    def _do_next(self) -> None:
        with self._changed:
            aside, request = self._aside, self._asked
            step = self._sending = self._steps[0] if self._steps and aside is None else None
        try:
            if aside is not None:
                self._set_aside(aside)
            elif step is not None:
                self._send(step)
            else:
                self.run.send_record(self.record)
                self._answered = request
        finally:
            with self._changed:
                self._sending = None
                self._changed.notify_all()

    def _set_aside(self, step: int) -> None:
        gone = self.run.set_aside_after(step)
        with self._changed:
            if self._aside == step:
                write_pending(self.root, None)
                self._aside = None
        for name in gone:
            self._report("set_aside", f"{name} was renamed at {self.run.url}", checkpoint=name)

    def _send(self, step: int) -> None:
        manifest: Manifest | None = None
        try:
            manifest = self._manifest(step)
            directory = list_checkpoints(self.root)[step]
            began = time.monotonic()
            best = readable_pointer(self.root, "best")
            sent = self.run.send(directory, manifest, self.record, best)
        except DamagedCheckpoint as error:
            if manifest is not None and self._is_replaced(step, manifest):
                return
            name = directory_name(step)
            text = f"{name} is not uploaded: {error.reason}"
            self._report("upload_skipped", text, checkpoint=name)
            self._forget(step)
            return
        for name in self.run.prune(self.rule, self.protected):
            self._report("upload_removed", checkpoint=name)
        self._report(
            "upload",
            checkpoint=directory_name(step),
            files=sent.files,
            bytes=sent.size,
            verified=sent.by,
            seconds=round(time.monotonic() - began, 3),
        )
        with self._changed:
            self._sent[step] = manifest
            # If saved again in the meantime, it is uploaded again.
            if not self._is_replaced(step, manifest):
                self._forget(step)

    def _manifest(self, step: int) -> Manifest:
        directory = list_checkpoints(self.root).get(step)
        if directory is None:
            raise DamagedCheckpoint(self.root / directory_name(step), "it no longer exists")
        return read_manifest(directory)

    def _is_replaced(self, step: int, manifest: Manifest) -> bool:
        """True if a checkpoint was saved again after its manifest was read."""
        try:
            return self._manifest(step) != manifest
        except SetpointError:
            return False

    def _forget(self, step: int) -> None:
        with self._changed:
            self._steps = [other for other in self._steps if other != step]

    def _report(self, event: str, note: str = "", **details: Any) -> None:
        self._reports.append(UploadReport(event, {**details, "url": self.run.url}, note))


def write_pending(root: Path, step: int | None) -> None:
    """Store the step after which the checkpoints at the URL are obsolete.

    Arguments:
        root: the folder of the checkpoints.
        step: None if there are none.

    Raises:
        OSError: the disk fails.
    """
    path = root / PENDING
    if step is None:
        path.unlink(missing_ok=True)
        return
    with replacing(path, sync=True) as staged:
        write_file(staged, [f"{step}\n".encode()])


def read_pending(root: Path) -> int | None:
    """The step stored by `write_pending`; None if there is none."""
    try:
        return int((root / PENDING).read_text())
    except (FileNotFoundError, ValueError):
        return None


ROWS, EVENTS = (CHAIN, "metrics.jsonl"), "events.jsonl"
"""The rows, after the chain that seals them: rows written in between are not sealed yet."""
RECORD = ("report.html", *ROWS, EVENTS, ENVIRONMENT, "labels.json", ORIGINS, MINIMAL,
          CONFIG)  # fmt: skip
"""Files of a run to upload with checkpoints; the last marks a run directory."""
