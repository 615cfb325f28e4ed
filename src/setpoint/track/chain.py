"""`chain.jsonl`: a chain of hashes over the rows of metrics and the checkpoints of a run.

Each line is a link. It holds the digests of the rows that were written since the link before, or
the digest of a checkpoint's manifest, and the hash of the link before. Its own hash is the SHA-256
of its JSON without the field `hash`. Whoever knows the hash of the last link, the head, knows all
that the chain seals: a row or a checkpoint that is changed, removed, added or moved afterwards is
found. Rows are on the disk before a link seals them, and a link that drops rows is there before
they are dropped, so that a process that is killed at any moment leaves a chain that fits its rows;
those after the last link are not sealed yet.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from setpoint.config import RunError

from .console import now
from .jsonl import JsonlWriter

CHAIN = "chain.jsonl"
"""In the run directory."""
MOST = 10_000_000
"""Rows that may be from before a chain, so that a made-up number takes no memory."""
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
    """

    def __init__(self, run: Path, metrics: Path) -> None:
        self.path, self.metrics = run / CHAIN, metrics
        self._lock = Lock()
        self._writer: JsonlWriter | None = None
        self.head: str | None = None
        self._number = self._total = 0
        last = _last_link(self.path)
        if last is not None:
            self.head, self._number, self._total = last["hash"], last["link"], last["total"]
        self._before = 0 if last is not None else _count_rows(metrics)
        self._total += self._before
        # Fewer rows than are sealed are damage, which the next link states.
        self._offset, there = _end_of_row(metrics, self._total)
        self._missing, self._cut = self._total - there, None
        if self._missing:
            self._cut = self._total = there

    def open(self, **session: Any) -> None:
        """Begin a session.

        Arguments:
            session: what is sealed of it: its step and fingerprint.
        """
        with self._lock:
            self._link(session=session)

    def seal(self, checkpoint: tuple[int, bytes] | None = None) -> None:
        """Seal the rows so far; nothing is written where there is nothing to seal.

        Arguments:
            checkpoint: the step of one that is about to be there, and the text of its manifest.

        Raises:
            RunError: if the disk is full or fails.
        """
        more: dict[str, Any] = {}
        if checkpoint is not None:
            step, manifest = checkpoint
            more["checkpoint"] = {"step": step, "manifest": hashlib.sha256(manifest).hexdigest()}
        with self._lock:
            rows, end = self._new_rows()
            if rows or more:
                self._link(rows, **more)
                self._offset = end

    def cut(self, offset: int) -> None:
        """Drop the rows after an offset from the chain; to be called before they are dropped.

        Arguments:
            offset: length of `metrics.jsonl` where a row ends.

        Raises:
            RunError: if the disk is full or fails.
        """
        with self._lock:
            if offset < self._offset:
                left = _count_rows(self.metrics, offset)
                self._cut, self._total, self._offset = left, left, offset
                self._link()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    def _new_rows(self) -> tuple[list[str], int]:
        """The digests of the whole rows that are not sealed, which are on the disk then."""
        try:
            with self.metrics.open("rb") as file:
                if os.fstat(file.fileno()).st_size <= self._offset:
                    return [], self._offset
                os.fsync(file.fileno())
                file.seek(self._offset)
                *lines, rest = file.read().split(b"\n")
                return [row_digest(line) for line in lines], file.tell() - len(rest)
        except FileNotFoundError:
            return [], self._offset
        except OSError as error:
            raise RunError(f"{self.metrics} cannot be read: {error.strerror}") from error

    def _link(self, rows: list[str] | None = None, **more: Any) -> None:
        link: dict[str, Any] = {
            "link": self._number + 1,
            "time": now(),
            "previous": self.head,
            **({"before": self._before} if self.head is None else {}),
            **({"cut": self._cut} if self._cut is not None else {}),
            **({"missing": self._missing} if self._missing else {}),
            **more,
            "rows": rows or [],
            "total": self._total + len(rows or []),
        }
        link["hash"] = link_hash(link)
        if self._writer is None:
            self._writer = JsonlWriter(self.path)
        self._writer.write(link)
        self._writer.sync()
        self.head, self._number, self._total = link["hash"], link["link"], link["total"]
        self._cut, self._missing = None, 0


class NoChain(Chain):
    """Writes nothing, where another rank writes the chain of the run."""

    def __init__(self) -> None:
        self.head = None

    def open(self, **session: Any) -> None:
        """See `Chain.open`."""

    def seal(self, checkpoint: tuple[int, bytes] | None = None) -> None:
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
        checkpoints: the digests of manifests that a step was saved with, since rows before it were
            dropped last.
        heads: the hash of each link.
        problems: what is wrong with links.
    """

    rows: list[str | None] = field(default_factory=list)
    checkpoints: dict[int, set[str]] = field(default_factory=dict)
    heads: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def head(self) -> str | None:
        """The hash of the last link; None without any."""
        return self.heads[-1] if self.heads else None


def read_chain(path: Path) -> Sealed:
    """Read a chain, and verify that each of its links follows from the one before.

    Raises:
        OSError: if it cannot be read.
    """
    sealed = Sealed()
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
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
    if sealed.head is None:
        if not 0 <= link["before"] <= MOST:
            raise ValueError(f"it counts {link['before']} rows from before the chain")
        sealed.rows.extend([None] * link["before"])
    if "cut" in link:
        del sealed.rows[link["cut"] :]
    if "missing" in link:
        sealed.problems.append(
            f"chain.jsonl:{number}: {link['missing']} rows that were sealed were not there any "
            f"more when a session began, at {link['time']}"
        )
    sealed.rows.extend(link["rows"])
    if len(sealed.rows) != link["total"]:
        raise ValueError(f"the link counts {link['total']} rows, and there are {len(sealed.rows)}")
    if "session" in link:
        later = [step for step in sealed.checkpoints if step > link["session"]["step"]]
        for step in later:
            del sealed.checkpoints[step]
    if "checkpoint" in link:
        found = link["checkpoint"]
        sealed.checkpoints.setdefault(found["step"], set()).add(found["manifest"])
    sealed.heads.append(link["hash"])


def _last_link(path: Path) -> dict[str, Any] | None:
    """The last whole line, if it is a link that matches its own hash."""
    try:
        with path.open("rb") as file:
            lines = file.read().split(b"\n")[:-1]
        link = json.loads(lines[-1])
        return link if link_hash(link) == link["hash"] else None
    except (OSError, ValueError, IndexError, KeyError, TypeError, AttributeError):
        return None


def _count_rows(path: Path, offset: int | None = None) -> int:
    """How many whole rows a file has, up to an offset."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        return file.read(-1 if offset is None else offset).count(b"\n")


def _end_of_row(path: Path, count: int) -> tuple[int, int]:
    """Where so many rows end, or all where there are fewer; and how many they are."""
    offset = found = 0
    if path.exists():
        with path.open("rb") as file:
            for line in file:
                if found == count or not line.endswith(b"\n"):
                    break
                offset, found = offset + len(line), found + 1
    return offset, found
