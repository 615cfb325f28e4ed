"""`chain.jsonl`: a chain of hashes over the rows of metrics, events and checkpoints of a run.

Each line is a link. It holds the digests of the rows and events that were written since the link
before, or the digest of a checkpoint's manifest, and the hash of the link before. Its own hash is
the SHA-256 of its JSON without the field `hash`. Whoever knows the hash of the last link, the head,
knows all that the chain seals: a row, an event or a checkpoint that is changed, removed, added or
moved afterwards is found. Rows are on the disk before a link seals them, and a link that drops rows
is there before they are dropped, so that a process that is killed at any moment leaves a chain that
fits its rows; those after the last link are not sealed yet.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

from setpoint.config import RunError

from .console import now
from .jsonl import JsonlWriter, whole_lines

CHAIN = "chain.jsonl"
"""In the run directory."""
MOST = 10_000_000
"""Rows that may be from before a chain, so that a made-up number takes no memory."""
BLOCK = 1 << 20
"""Bytes that are read at once."""
HEAD = "chain.txt"
"""In a checkpoint: the head of the chain when it was saved."""
DIGITS = 24
"""Hexadecimal digits of a row's digest: 96 bits of its SHA-256."""


def row_digest(line: bytes) -> str:
    """The digest of a row: of its line without the line break."""
    return hashlib.sha256(line).hexdigest()[:DIGITS]


def link_hash(link: dict[str, Any]) -> str:
    """The hash of a link: of its JSON without the field `hash`."""
    bare = {name: value for name, value in link.items() if name != "hash"}
    return hashlib.sha256(json.dumps(bare).encode()).hexdigest()


class Chain:
    """Writes the chain of a run whose directory this process has locked; from any thread.

    A run that was begun without a chain gets one that says how many rows were there before. After
    a last link that cannot be read a new chain begins in the same file.

    Arguments:
        run: the run directory.
        metrics: its `metrics.jsonl`.
        events: its `events.jsonl`, whose rows are never dropped.
    """

    def __init__(self, run: Path, metrics: Path, events: Path) -> None:
        self.path = run / CHAIN
        self._lock = Lock()
        self._writer: JsonlWriter | None = None
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
            session: what is sealed of it: its step and fingerprint.
        """
        with self._lock:
            # Rows after the last checkpoint are about to be dropped.
            self._link(seals_rows=False, session=session)

    def seal(self, checkpoint: tuple[int, bytes] | None = None, events_alone: bool = True) -> None:
        """Seal the rows and events so far; nothing is written where there is nothing to seal.

        Arguments:
            checkpoint: the step of one that is about to be there, and the text of its manifest.
            events_alone: whether events without rows are worth a link, and so another head.

        Raises:
            RunError: if the disk is full or fails.
        """
        more: dict[str, Any] = {}
        if checkpoint is not None:
            step, manifest = checkpoint
            more["checkpoint"] = {"step": step, "manifest": hashlib.sha256(manifest).hexdigest()}
        with self._lock:
            if more or self._rows.has_more() or (events_alone and self._events.has_more()):
                self._link(**more)

    def cut(self, offset: int) -> None:
        """Drop the rows after an offset from the chain; to be called before they are dropped.

        Arguments:
            offset: length of `metrics.jsonl` where a row ends.

        Raises:
            RunError: if the disk is full or fails.
        """
        with self._lock:
            if self._rows.cut_at(offset):
                self._link(seals_rows=False)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    def _link(self, seals_rows: bool = True, **more: Any) -> None:
        rows, events = self._rows.new() if seals_rows else [], self._events.new()
        link: dict[str, Any] = {
            "link": self._number + 1,
            "time": now(),
            "previous": self.head,
            **({"before": self._rows.before} if self.head is None else {}),
            **self._rows.facts(),
            **more,
            "events": {
                **({"before": self._events.before} if self.head is None else {}),
                **self._events.facts(),
                "rows": events,
                "total": self._events.total + len(events),
            },
            "rows": rows,
            "total": self._rows.total + len(rows),
        }
        link["hash"] = link_hash(link)
        if self._writer is None:
            self._writer = JsonlWriter(self.path)
        self._writer.write(link)
        self._writer.sync()
        self.head, self._number = link["hash"], link["link"]
        self._events.sealed(len(events))
        self._rows.sealed(len(rows))


class _Tail:
    """The rows of a file that no link seals yet.

    Arguments:
        total: how many rows the links before have; None where none seals the file.
        before: how many were there before the first one.
    """

    def __init__(self, path: Path, total: int | None) -> None:
        self.path = path
        self.before = _count_rows(path) if total is None else 0
        wanted = self.before if total is None else total
        self.offset, self.total = _end_of_row(path, wanted)
        self._end = self.offset
        # Fewer rows than are sealed are damage, which the next link states.
        self._missing = wanted - self.total
        self._cut = self.total if self._missing else None

    def has_more(self) -> bool:
        """Whether there is anything after the last row that is sealed."""
        return self.path.exists() and self.path.stat().st_size > self.offset

    def new(self) -> list[str]:
        """The digests of the whole rows that are not sealed, which are on the disk then."""
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size <= self.offset:
                    return []
                os.fsync(file.fileno())
                file.seek(self.offset)
                *lines, rest = file.read().split(b"\n")
                self._end = file.tell() - len(rest)
                return [row_digest(line) for line in lines]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RunError(f"{self.path} cannot be read: {error.strerror}") from error

    def cut_at(self, offset: int) -> bool:
        """Drop the rows after an offset; returns whether any of them is sealed."""
        if offset >= self.offset:
            return False
        self._cut = self.total = _count_rows(self.path, offset)
        self.offset = self._end = offset
        return True

    def facts(self) -> dict[str, int]:
        """What the next link says of rows that are gone."""
        found = {} if self._cut is None else {"cut": self._cut}
        return found | ({"missing": self._missing} if self._missing else {})

    def sealed(self, count: int) -> None:
        """Take note that a link with what is new is there."""
        self.offset, self.total = self._end, self.total + count
        self._missing, self._cut = 0, None


class NoChain(Chain):
    """Writes nothing, where another rank writes the chain of the run."""

    def __init__(self) -> None:
        self.head = None

    def open(self, **session: Any) -> None:
        """See `Chain.open`."""

    def seal(self, checkpoint: tuple[int, bytes] | None = None, events_alone: bool = True) -> None:
        """See `Chain.seal`."""

    def cut(self, offset: int) -> None:
        """See `Chain.cut`."""

    def close(self) -> None:
        """See `Chain.close`."""


@dataclass(slots=True)
class Sealed:
    """What the links of a chain say, one after the other.

    Arguments:
        rows: the digest of each row that `metrics.jsonl` begins with; None for those that were
            there before the chain.
        events: the same of `events.jsonl`.
        checkpoints: the digests of manifests that a step was saved with, since rows before it were
            dropped last.
        heads: the hash of each link.
        fingerprints: those of the sessions.
        problems: what is wrong with links.
    """

    rows: list[str | None] = field(default_factory=list)
    events: list[str | None] = field(default_factory=list)
    checkpoints: dict[int, set[str]] = field(default_factory=dict)
    heads: list[str] = field(default_factory=list)
    fingerprints: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    @property
    def head(self) -> str | None:
        """The hash of the last link; None without any."""
        return self.heads[-1] if self.heads else None


def read_chain(path: Path) -> Sealed:
    """Read a chain, and verify that each of its links follows from the one before.

    Raises:
        OSError: if it cannot be read, or a line is too long.
    """
    sealed = Sealed()
    for number, line in enumerate(whole_lines(path), start=1):
        try:
            _follow(sealed, number, line)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            what = str(error) if type(error) is ValueError else "it is no link"
            sealed.problems.append(f"{path.name}:{number}: {what}")
            break  # what follows hangs in the air
    return sealed


def _follow(sealed: Sealed, number: int, line: bytes) -> None:
    """Take one more link.

    Raises:
        ValueError: in words, if it does not follow; or with KeyError, TypeError: it is no link.
    """
    try:
        link = json.loads(line)
    except ValueError:
        raise ValueError("it is no link") from None
    if json.dumps(link).encode() != line or link_hash(link) != link["hash"]:
        raise ValueError("the link was changed: it does not match its own hash")
    if link["link"] != number or link["previous"] != sealed.head:
        raise ValueError(
            f"link {link['link']} does not follow the one before it: links are missing, were added "
            f"or moved, or a new chain begins here because the end of the one before was damaged"
        )
    where = f"{CHAIN}:{number}"
    if sealed.head is None:
        sealed.rows.extend(_before(link))
        sealed.events.extend(_before(link["events"]))
    for what, rows, said in (
        ("rows", sealed.rows, link),
        ("events", sealed.events, link["events"]),
    ):
        _take(rows, said, what, f"{where}: {{}} {what}", link["time"], sealed.problems)
    if "session" in link:
        later = [step for step in sealed.checkpoints if step > link["session"]["step"]]
        for step in later:
            del sealed.checkpoints[step]
        sealed.fingerprints.add(link["session"]["fingerprint"])
    if "checkpoint" in link:
        found = link["checkpoint"]
        sealed.checkpoints.setdefault(found["step"], set()).add(found["manifest"])
    sealed.heads.append(link["hash"])


def _before(said: dict[str, Any]) -> list[str | None]:
    """What stands for the rows from before a chain."""
    if not 0 <= said["before"] <= MOST:
        raise ValueError(f"it counts {said['before']} rows from before the chain")
    return [None] * said["before"]


def _take(
    rows: list[str | None],
    said: dict[str, Any],
    what: str,
    gone: str,
    time: str,
    problems: list[str],
) -> None:
    """Take what a link says of the rows of a file."""
    if "cut" in said:
        del rows[said["cut"] :]
    if "missing" in said:
        problems.append(
            f"{gone.format(said['missing'])} that were sealed were not there any more when a "
            f"session began, at {time}"
        )
    rows.extend(said["rows"])
    if len(rows) != said["total"]:
        raise ValueError(f"the link counts {said['total']} {what}, and there are {len(rows)}")


def _last_link(path: Path) -> dict[str, Any] | None:
    """The last whole line, if it is a link that matches its own hash."""
    try:
        [line] = deque(whole_lines(path), maxlen=1)
        link = json.loads(line)
        return link if link_hash(link) == link["hash"] else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _count_rows(path: Path, offset: int | None = None) -> int:
    """How many whole rows a file has, up to an offset."""
    if not path.exists():
        return 0
    count, left = 0, path.stat().st_size if offset is None else offset
    with path.open("rb") as file:
        while part := file.read(min(left, BLOCK)):
            count, left = count + part.count(b"\n"), left - len(part)
    return count


def _end_of_row(path: Path, count: int) -> tuple[int, int]:
    """Where so many rows end, or all where there are fewer; and how many they are."""
    offset = found = 0
    if path.exists():
        with suppress(OSError):  # of a line that is no row
            for line in islice(whole_lines(path), count):
                offset, found = offset + len(line) + 1, found + 1
    return offset, found
