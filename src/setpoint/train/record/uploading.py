"""Which checkpoints of a run are uploaded, and where to."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from setpoint.checkpoint.config import Remote
from setpoint.checkpoint.layout import STATE, list_checkpoints
from setpoint.checkpoint.pointers import readable_pointer
from setpoint.checkpoint.remote import RemoteRun
from setpoint.checkpoint.retention import Retention
from setpoint.checkpoint.state_file import decode_state
from setpoint.checkpoint.uploads import Report, Uploads
from setpoint.parallel.world import World
from setpoint.track.chain import CHAIN
from setpoint.track.events import EventLog
from setpoint.track.progress import Progress
from setpoint.track.run_directory import RunDirectory
from setpoint.train.config import Job
from setpoint.train.position import Position, is_due
from setpoint.units import Period

ROWS, EVENTS = (CHAIN, "metrics.jsonl"), "events.jsonl"
"""The rows and, before them, what seals them: rows that came in between are not sealed yet."""
RECORD = ("report.html", *ROWS, EVENTS, "environment.json", "labels.json", "origins.json",
          "config.toml", "config.json")  # fmt: skip
"""The files of a run that go with its checkpoints; the last makes a directory that of a run."""


def remote_of(section: Remote, path: Path) -> RemoteRun:
    """Where a run directory is uploaded to: a folder of its name.

    Raises:
        RemoteError: if the URL cannot be opened.
    """
    url = f"{section.url.rstrip('/')}/{path.resolve().name}"
    return RemoteRun(url, by_size=section.verify == "size")


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


def start_uploads(job: Job, world: World, directory: RunDirectory) -> Cadence | None:
    """Start what sends checkpoints, which the main rank does alone.

    Returns:
        None where nothing is sent, or another rank sends.
    """
    section = job.checkpoint.remote
    if section is None or not world.is_main:
        return None
    uploads = Uploads(
        remote_of(section, directory.path),
        directory.checkpoints,
        record=[directory.path / name for name in RECORD],
        rule=Retention(section.keep, job.checkpoint.keep_every, job.checkpoint.at),
        waiting=section.waiting,
    )
    return Cadence(uploads, section.every)


def resume_uploads(cadence: Cadence, position: Position) -> None:
    """Go on with what a session before has not sent, and give up what the run has left behind."""
    cadence.set_aside_after(position)
    add_named(cadence.uploads)


def add_named(uploads: Uploads) -> None:
    """Add the checkpoints that `latest` and `best` name."""
    steps = {readable_pointer(uploads.root, name) for name in ("best", "latest")}
    for step in sorted(step for step in steps if step is not None):
        uploads.add(step)


def report_uploads(reports: Iterable[Report], events: EventLog, progress: Progress) -> None:
    """Note and record what has been uploaded, fetched, or failed."""
    for report in reports:
        if report.note:
            progress.note(report.note)
        events.write(report.event, **report.details)
