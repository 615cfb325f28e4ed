"""Sends checkpoints to a URL in the background, while training goes on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from threading import Condition, Thread
from typing import Any, NamedTuple

from setpoint.checkpoint.folder import (
    PENDING,
    Retention,
    directory_name,
    list_checkpoints,
    readable_pointer,
)
from setpoint.checkpoint.manifest import (
    STATE,
    DamagedCheckpoint,
    Manifest,
    decode_state,
    read_manifest,
)
from setpoint.config import RunError, SetpointError
from setpoint.files.atomic import replacing, write_file
from setpoint.hub.fetch import url_reason
from setpoint.ops.proof import CHAIN
from setpoint.ops.remote_run import RemoteRun
from setpoint.train.position import Position, is_due
from setpoint.units import Period

LONGEST = 300.0
"""Seconds of the longest pause between two attempts."""


class UploadReport(NamedTuple):
    """Something that happened in the background.

    Arguments:
        event: its name in `events.jsonl`.
        details: of the event.
        note: a line for people; empty where there is nothing to say.
    """

    event: str
    details: dict[str, Any]
    note: str = ""


ALL = Retention(None)


class _Closed(RunError):
    """Raised in the thread where the process is about to end."""


class Uploads:
    """One thread that makes the checkpoints at a URL those of a folder.

    A failure never reaches the caller: it is reported, and tried again after a growing pause until
    the uploads are closed. What waits to be sent is protected from retention; where too many wait,
    the oldest is given up.

    Arguments:
        run: where they are sent to; its `alive` becomes that of this thread.
        root: the folder of the checkpoints.
        record: files of the run that go with each.
        rule: what stays at the URL.
        waiting: how many may wait; at least 1.
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
        # How often the record was to be sent, and how many of these a transfer that ended serves.
        self._asked, self._answered = 0, 0
        self._failure = ""
        self._is_closed = False
        self._thread = Thread(target=self._work, name="setpoint-uploads", daemon=True)
        self._thread.start()

    def add(self, step: int) -> None:
        """Let a checkpoint be sent that has not been, in place of what waits of the same step."""
        best = readable_pointer(self.root, "best")
        with self._changed:
            if step in self._sent and not self._is_replaced(step, self._sent[step]):
                return
            self._steps = [other for other in self._steps if other != step] + [step]
            while len(self._steps) > self.waiting + (self._sending is not None):
                # That which is being sent stays, and so does the best: no later one replaces it.
                spare = [e for e in self._steps[:-1] if e not in (self._sending, best)]
                if not spare:
                    break
                self._steps.remove(spare[0])
                name = directory_name(spare[0])
                text = f"{name} is not uploaded: {self.waiting} newer ones wait (remote.waiting)"
                self._report("upload_skipped", text, checkpoint=name)
            self._changed.notify_all()

    def add_named(self) -> None:
        """Add the checkpoints that `latest` and `best` name."""
        steps = {readable_pointer(self.root, name) for name in ("best", "latest")}
        for step in sorted(step for step in steps if step is not None):
            self.add(step)

    def set_aside_after(self, step: int) -> None:
        """Let the checkpoints after `step` count no more, at the URL and in what waits.

        Raises:
            RunError: if the disk refuses to keep that in mind.
        """
        with self._changed:
            self._steps = [other for other in self._steps if other <= step]
            self._sent = {each: sent for each, sent in self._sent.items() if each <= step}
            self._aside = step if self._aside is None else min(step, self._aside)
            try:
                write_pending(self.root, self._aside)
            except OSError as error:
                raise RunError(f"{self.root} cannot be written: {error.strerror}") from error
            self._changed.notify_all()

    def add_record(self) -> None:
        """Let the files of the run be sent once more."""
        with self._changed:
            self._asked += 1
            self._changed.notify_all()

    @property
    def protected(self) -> frozenset[int]:
        """The steps that wait to be sent, which retention must not remove."""
        with self._changed:
            return frozenset(self._steps)

    @property
    def unsent(self) -> list[str]:
        """The names of the checkpoints that wait to be sent."""
        return [directory_name(step) for step in sorted(self.protected)]

    @property
    def left(self) -> str:
        """Unsent checkpoints or files, in words."""
        return ", ".join(self.unsent) or "the record of the run"

    @property
    def failure(self) -> str:
        """Last error of the service, if nothing has gone well since."""
        return self._failure

    def reports(self) -> list[UploadReport]:
        """Reports since the last call."""
        reports: list[UploadReport] = []
        while self._reports:
            reports.append(self._reports.popleft())
        return reports

    def wait(self, seconds: float) -> bool:
        """Wait until everything is sent.

        Returns:
            whether it is.
        """
        with self._changed:
            return self._changed.wait_for(lambda: not self._is_due() or self._is_closed, seconds)

    def close(self) -> None:
        """End the thread after the piece that it transfers; what waits is not sent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(timeout=5.0)

    def _is_due(self) -> bool:
        return bool(self._steps) or self._aside is not None or self._asked > self._answered

    def _require_open(self) -> None:
        if self._is_closed:
            raise _Closed("the uploads are closed")

    def _work(self) -> None:
        pause = self.pause
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_due() or self._is_closed)
                if self._is_closed:
                    return
            try:
                self._do_next()
            except _Closed:
                return
            except Exception as error:  # each service has errors of its own
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
            aside, asked = self._aside, self._asked
            step = self._sending = self._steps[0] if self._steps and aside is None else None
        try:
            if aside is not None:
                self._set_aside(aside)
            elif step is not None:
                self._send(step)
            else:
                self.run.send_record(self.record)
                self._answered = asked
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
            self._report("set_aside", f"{name} is set aside at {self.run.url}", checkpoint=name)

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
            # Saved again meanwhile, it is sent again.
            if not self._is_replaced(step, manifest):
                self._forget(step)

    def _manifest(self, step: int) -> Manifest:
        directory = list_checkpoints(self.root).get(step)
        if directory is None:
            raise DamagedCheckpoint(self.root / directory_name(step), "it is gone")
        return read_manifest(directory)

    def _is_replaced(self, step: int, manifest: Manifest) -> bool:
        """True if a checkpoint has been saved again since its manifest was read."""
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
    """Keep on the disk after which step the URL holds checkpoints that are to count no more.

    Arguments:
        root: the folder of the checkpoints.
        step: None where it holds none.

    Raises:
        OSError: if the disk refuses.
    """
    path = root / PENDING
    if step is None:
        path.unlink(missing_ok=True)
        return
    with replacing(path, sync=True) as staged:
        write_file(staged, [f"{step}\n".encode()])


def read_pending(root: Path) -> int | None:
    """The step that `write_pending` was given; None for none."""
    try:
        return int((root / PENDING).read_text())
    except (FileNotFoundError, ValueError):
        return None


ROWS, EVENTS = (CHAIN, "metrics.jsonl"), "events.jsonl"
"""The rows and, before them, what seals them: rows that came in between are not sealed yet."""
RECORD = ("report.html", *ROWS, EVENTS, "environment.json", "labels.json", "origins.json",
          "config.toml", "config.json")  # fmt: skip
"""The files of a run that go with its checkpoints; the last makes a directory that of a run."""


class Cadence:
    """Adds those checkpoints that are committed and due to the uploads.

    Arguments:
        before: where the run was at the last commit.
    """

    def __init__(self, uploads: Uploads, every: Period | None) -> None:
        self.uploads, self.every = uploads, every
        self.before = Position()

    def committed(self, step: int, path: Path) -> None:
        """Called with each checkpoint that is whole."""
        try:
            now = Position(**decode_state((path / STATE).read_bytes())["position"])
        except OSError:
            # It is the thread that finds out and says what is wrong with the checkpoint.
            self.uploads.add(step)
            return
        if self.every is None or is_due(self.every, self.before, now, last=False):
            self.uploads.add(step)
        self.before = now

    def set_aside_after(self, position: Position) -> None:
        """Let what was uploaded after a position count no more: the run goes on from there."""
        self.before = position
        has_any = bool(list_checkpoints(self.uploads.root))
        self.uploads.set_aside_after(position.step if has_any else -1)
