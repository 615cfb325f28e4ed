"""Live view of a run, based only on its files, on this machine or another."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from setpoint.config import CONFIG, SetpointError
from setpoint.files.atomic import complete_lines, read_json, row_of
from setpoint.files.lock import is_locked
from setpoint.ops.heartbeat import Beat, read_heartbeats
from setpoint.report.goodput import status_of, timestamp
from setpoint.report.plot import Plot, Series
from setpoint.track.run_directory import is_run_directory, not_a_run
from setpoint.train.config import BatchConfig
from setpoint.train.position import Position, share_done
from setpoint.units import Duration

if TYPE_CHECKING:
    from typing_extensions import TypeIs

POINTS = 2000
"""Maximum number of points of a curve, halved when exceeded."""
EVENTS = ("save", "rollback", "skip", "resume", "restart", "fault", "damaged", "stragglers",
          "gpu_health")  # fmt: skip
"""Events to show, newest first."""
SLOW = 60.0
"""Seconds without progress after which a rank is reported."""


class Tail:
    """Follows a growing file of rows, and calls `take` with each.

    If the file is replaced or truncated, `restart` is called and it is read again.
    """

    def __init__(
        self, path: Path, take: Callable[[Mapping[str, Any]], None], restart: Callable[[], None]
    ) -> None:
        self.path, self.take, self.restart = path, take, restart
        self.broken = 0
        """Damaged lines."""
        self._offset, self._file = 0, 0

    def read(self) -> None:
        """Read new rows; an incomplete last line is left for later.

        Raises:
            SetpointError: the file cannot be read.
        """
        try:
            with open(self.path, "rb") as file:
                stat = os.fstat(file.fileno())
                if stat.st_ino != self._file or stat.st_size < self._offset:
                    self.restart()
                    self._offset, self.broken = 0, 0
                self._file = stat.st_ino
                file.seek(self._offset)
                for line in complete_lines(file):
                    if (row := row_of(line)) is None:
                        self.broken += 1
                    else:
                        self.take(row)
                    self._offset = file.tell()
        except FileNotFoundError:
            return
        except OSError as error:
            raise SetpointError(f"{self.path} cannot be read: {error.strerror}") from error


class RecordedBatches(NamedTuple):
    """The part of a job that determines how much of it is done, without the user's components."""

    duration: Duration
    batch: BatchConfig


class Rank(NamedTuple):
    """A rank without heartbeats or progress for some seconds."""

    rank: int
    host: str
    step: int | None
    is_gone: bool
    seconds: float


@dataclass
class Watched:
    """A run that is being polled.

    Arguments:
        path: its directory.
        columns: `KIND.COLUMN` of the curves.
        requested: curves to show even if empty.
    """

    path: Path
    columns: Sequence[str] = ("train.mean_loss", "evaluation.held_out_loss")
    requested: Sequence[str] = ()
    job: RecordedBatches | None = None
    last: dict[str, Any] = field(default_factory=dict)
    """The newest row of each kind."""
    events: list[Mapping[str, Any]] = field(default_factory=list)
    curves: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    beats: list[Beat] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    """`KIND.COLUMN` of all numbers in rows."""
    _strides: dict[str, int] = field(default_factory=dict)
    _row_counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not is_run_directory(self.path):
            raise not_a_run(self.path)
        self._rows = Tail(self.path / "metrics.jsonl", self._take, self._begin)
        self._history = Tail(self.path / "events.jsonl", self.events.append, self.events.clear)

    def poll(self) -> None:
        """Read new rows and events.

        Raises:
            SetpointError: a file cannot be read.
        """
        if self.job is None:
            self.job = _recorded(self.path)
        self._rows.read()
        self._history.read()
        self.beats = read_heartbeats(self.path)

    def _begin(self) -> None:
        for container in (self.last, self.curves, self.known, self._strides, self._row_counts):
            container.clear()

    def _take(self, row: Mapping[str, Any]) -> None:
        kind, step = row.get("kind"), row.get("step")
        if not isinstance(kind, str):
            return
        self.last[kind] = row
        self.known.update(f"{kind}.{name}" for name in row if _is_number(row[name]))
        for name in self.columns:
            column_kind, _, column = name.partition(".")
            value = row.get(column) if column_kind == kind else None
            if not (_is_number(value) and _is_number(step)):
                continue
            curve, stride = self.curves.setdefault(name, []), self._strides.setdefault(name, 1)
            self._row_counts[name] = self._row_counts.get(name, 0) + 1
            if self._row_counts[name] % stride:
                continue
            curve.append((float(step), float(value)))
            if len(curve) > POINTS:
                del curve[1::2]
                self._strides[name] *= 2

    @property
    def broken(self) -> int:
        """Damaged lines of metrics and events."""
        return self._rows.broken + self._history.broken

    @property
    def status(self) -> str:
        """Status as in `setpoint runs list`, based on heartbeats for runs on other machines."""
        beats = any(not beat.is_gone(time.time()) for beat in self.beats)
        return status_of(self.events, lambda: beats or is_locked(self.path / ".lock"))

    @property
    def position(self) -> Position | None:
        """Position of the newest training row."""
        row = self.last.get("train")
        if row is None:
            return None
        numbers = [row.get(name) for name in _POSITION]
        step, tokens, epochs, seconds = (number if _is_number(number) else 0 for number in numbers)
        return Position(int(step), int(tokens), epochs, seconds)

    @property
    def done(self) -> float | None:
        """Completed fraction of the run, from 0 to 1."""
        position = self.position
        if position is None or self.job is None:
            return None
        return share_done(self.job.duration, position, self.job.batch)

    @property
    def seconds_left(self) -> float | None:
        """Seconds of training until the end, at the pace of the whole run."""
        position, done = self.position, self.done
        return position.seconds * (1 - done) / done if position is not None and done else None

    @property
    def silent(self) -> float | None:
        """Seconds since the newest row or event; None if there are none."""
        times = [row.get("time") for row in (*self.last.values(), *self.events[-1:])]
        known = [stamp for text in times if (stamp := timestamp(text)) is not None]
        return time.time() - max(known) if known else None

    def troubled(self) -> list[Rank]:
        """Ranks without heartbeats, or without progress for SLOW seconds."""
        now = time.time()
        return [
            Rank(beat.rank, beat.host, beat.step, gone, now - (beat.time if gone else beat.since))
            for beat in self.beats
            if (gone := beat.is_gone(now)) or beat.stalled_seconds(now) > SLOW
        ]

    def plot(self, name: str) -> Plot:
        """A curve over the steps."""
        return Plot(name, "step", "", [Series(name, self.curves.get(name, []))])

    def to_json(self) -> dict[str, Any]:
        """The view as JSON data."""
        position = self.position
        return {
            "run": str(self.path),
            "status": self.status,
            "step": None if position is None else position.step,
            "done": self.done,
            "seconds_left": self.seconds_left,
            "silent": self.silent,
            "metrics": self.last,
            "troubled": [rank._asdict() for rank in self.troubled()],
            "events": self.events[-1:],
            "broken_lines": self.broken,
        }


_POSITION = ("step", "tokens", "epoch", "seconds")


def _is_number(value: Any) -> TypeIs[int | float]:
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return is_one and math.isfinite(value)


def _recorded(path: Path) -> RecordedBatches | None:
    """Duration and batch size in the record; None if they cannot be read."""
    try:
        record = read_json(path / CONFIG)
        return RecordedBatches(Duration(record["duration"]), BatchConfig(**record["batch"]))
    except (OSError, ValueError, TypeError, KeyError, SetpointError):
        return None
