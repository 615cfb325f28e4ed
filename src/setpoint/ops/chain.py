"""`chain.jsonl`: a chain of hashes over a run's metric rows, events and checkpoints.

Each line is a link. It contains the digests of the rows and events since the previous link, or the
digest of a checkpoint's manifest, and the hash of the previous link. Its own hash is the SHA-256 of
its JSON without the field `hash`. The hash of the last link, the head, covers the whole chain: it
reveals rows, events and manifests that were changed, removed, added or moved. Rows are flushed
before a link seals them, and a link that drops rows is written before they are dropped, so that the
chain matches the rows even after a kill at any time. Rows after the last link are not sealed yet.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from setpoint.config import RunError, SetpointError
from setpoint.ops.proof import CHAIN, HEAD, link_hash, row_digest
from setpoint.track.config import Jsonl
from setpoint.track.console import now
from setpoint.track.jsonl import JsonlWriter, whole_lines
from setpoint.train.loop import Callback, Loop, Phase
from setpoint.train.verdict import StepResult

if TYPE_CHECKING:
    from setpoint.train.session import Run

EVERY = 60.0
"""Seconds between links. Each takes a few milliseconds, for two flushes and the hashes of new
rows."""
BLOCK = 1 << 20
"""Bytes that are read at once."""


class ChainCallback(Callback):
    """Writes the chain of a run on the main rank.

    A link is written when a session begins, before rows are dropped, with each checkpoint, every
    minute, and when the session ends.
    """

    phase, min_interval = Phase.TIDY, EVERY

    def __init__(self) -> None:
        self.chain: Chain | None = None

    def opened(self, run: Run, stack: ExitStack) -> None:
        """Open the chain, and listen for events and checkpoints."""
        if not run.world.is_main:
            return
        self.run, self.chain = run, Chain(run.directory, run.files.metrics, run.files.events)
        run.events.listeners.append(self.on_event)
        run.store.sealed.append(lambda step, manifest: self._seal(checkpoint=(step, manifest)))
        run.store.texts.append(self.head_file)

    def head_file(self) -> dict[str, str]:
        """The file of a checkpoint that names the head."""
        return {} if self.chain is None or self.chain.head is None else {HEAD: self.chain.head}

    def on_event(self, event: str, details: dict[str, Any]) -> None:
        """Drop the rows lost by an event, and seal the start or failure of a session."""
        run, chain = self.run, self.chain
        assert chain is not None
        if event == "restart":
            chain.cut(0)
        elif event in ("start", "resume", "rollback"):
            if any(isinstance(tracker, Jsonl) for tracker in run.job.tracking.trackers):
                chain.cut(run.trackers.metrics_offset)
            if event != "rollback" and not run.had_nothing_left:
                chain.open(step=details["step"], fingerprint=details["fingerprint"])
        elif event == "fault":
            with suppress(SetpointError):  # the fault itself is shown, regardless of other errors
                chain.seal()

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Seal the rows so far."""
        self._seal()

    def close(self, loop: Loop) -> None:
        """Seal the last rows before the end event; an error is raised again in `recorded`."""
        with suppress(SetpointError):
            self._seal(events_alone=False)

    def recorded(self, loop: Loop, done: bool) -> None:
        """Seal the end; a run that had already finished keeps its head."""
        if self.chain is not None:
            self.chain.seal(events_alone=not self.run.had_nothing_left)

    def summary(self) -> list[tuple[str, str]]:
        """Name the head."""
        head = None if self.chain is None else self.chain.head
        return [] if head is None else [("chain head", head)]

    def _seal(self, **more: Any) -> None:
        if self.chain is not None:
            self.chain.seal(**more)


class Chain:
    """Writes the chain of a run whose directory is locked by this process, from any thread.

    If a run began without a chain, its chain states the number of earlier rows. After an unreadable
    last link, a new chain begins in the same file.

    Arguments:
        run: the run directory.
        metrics: its `metrics.jsonl`.
        events: its `events.jsonl`, which only grows.
    """

    def __init__(self, run: Path, metrics: Path, events: Path) -> None:
        self.path = run / CHAIN
        self._lock = Lock()
        self.head: str | None = None
        self._number = 0
        last = _last_link(self.path)
        if last is not None:
            self.head, self._number = last["hash"], last["link"]
        self._rows = _Tail(metrics, None if last is None else last["total"])
        self._events = _Tail(events, None if last is None else last["events"]["total"])

    def open(self, **session: Any) -> None:
        """Begin a session.

        Arguments:
            session: step and fingerprint of the session, to seal.
        """
        with self._lock:
            # Rows after the last checkpoint are about to be dropped.
            self._link(seals_rows=False, session=session)

    def seal(self, checkpoint: tuple[int, bytes] | None = None, events_alone: bool = True) -> None:
        """Seal the rows and events so far, if any.

        Arguments:
            checkpoint: step and manifest text of a checkpoint to publish.
            events_alone: True if events without rows get a link, and thus a new head.

        Raises:
            RunError: the disk is full or fails.
        """
        more: dict[str, Any] = {}
        if checkpoint is not None:
            step, manifest = checkpoint
            more["checkpoint"] = {"step": step, "manifest": hashlib.sha256(manifest).hexdigest()}
        with self._lock:
            if more or self._rows.has_more() or (events_alone and self._events.has_more()):
                self._link(**more)

    def cut(self, offset: int) -> None:
        """Drop rows after an offset from the chain, before they are dropped from the file.

        Arguments:
            offset: the offset in `metrics.jsonl`, at the end of a row.

        Raises:
            RunError: the disk is full or fails.
        """
        with self._lock:
            if self._rows.cut_at(offset):
                self._link(seals_rows=False)

    def _link(self, seals_rows: bool = True, **more: Any) -> None:
        rows, events = self._rows.new() if seals_rows else [], self._events.new()
        link: dict[str, Any] = {
            "link": self._number + 1,
            "time": now(),
            "previous": self.head,
            **({"before": self._rows.before} if self.head is None else {}),
            **self._rows.losses(),
            **more,
            "events": {
                **({"before": self._events.before} if self.head is None else {}),
                **self._events.losses(),
                "rows": events,
                "total": self._events.total + len(events),
            },
            "rows": rows,
            "total": self._rows.total + len(rows),
        }
        link["hash"] = link_hash(link)
        with JsonlWriter(self.path) as writer:
            writer.write(link)
            writer.sync()
        self.head, self._number = link["hash"], link["link"]
        self._events.sealed(len(events))
        self._rows.sealed(len(rows))


class _Tail:
    """The unsealed rows of a file.

    Arguments:
        total: number of rows in earlier links; None if there are none.
    """

    def __init__(self, path: Path, total: int | None) -> None:
        self.path = path
        self.before = _count_rows(path) if total is None else 0
        expected = self.before if total is None else total
        self.offset, self.total = _end_of_row(path, expected)
        self._end = self.offset
        # Fewer rows than sealed are damage, which the next link records.
        self._missing = expected - self.total
        self._cut = self.total if self._missing else None

    def has_more(self) -> bool:
        """True if there are unsealed rows."""
        return self.path.exists() and self.path.stat().st_size > self.offset

    def new(self) -> list[str]:
        """Flush the file, and return the digests of its complete unsealed rows."""
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size <= self.offset:
                    return []
                os.fsync(file.fileno())
                file.seek(self.offset)
                *lines, partial = file.read().split(b"\n")
                self._end = file.tell() - len(partial)
                return [row_digest(line) for line in lines]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RunError(f"{self.path} cannot be read: {error.strerror}") from error

    def cut_at(self, offset: int) -> bool:
        """Drop the rows after an offset; True if any of them was sealed."""
        if offset >= self.offset:
            return False
        self._cut = self.total = _count_rows(self.path, offset)
        self.offset = self._end = offset
        return True

    def losses(self) -> dict[str, int]:
        """Lost rows, for the next link."""
        cut = {} if self._cut is None else {"cut": self._cut}
        return cut | ({"missing": self._missing} if self._missing else {})

    def sealed(self, count: int) -> None:
        """Mark the new rows as sealed."""
        self.offset, self.total = self._end, self.total + count
        self._missing, self._cut = 0, None


def _last_link(path: Path) -> dict[str, Any] | None:
    """The last complete line, if it is a valid link."""
    try:
        [line] = deque(whole_lines(path), maxlen=1)
        link = json.loads(line)
        return link if link_hash(link) == link["hash"] else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _count_rows(path: Path, offset: int | None = None) -> int:
    """Number of complete rows in a file, up to an offset."""
    if not path.exists():
        return 0
    count, left = 0, path.stat().st_size if offset is None else offset
    with path.open("rb") as file:
        while part := file.read(min(left, BLOCK)):
            count, left = count + part.count(b"\n"), left - len(part)
    return count


def _end_of_row(path: Path, count: int) -> tuple[int, int]:
    """The end of the first `count` rows (or of all, if there are fewer), and their number."""
    offset = rows = 0
    if path.exists():
        with suppress(OSError):  # for a line that is not a row
            for line in islice(whole_lines(path), count):
                offset, rows = offset + len(line) + 1, rows + 1
    return offset, rows
