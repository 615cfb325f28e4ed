"""Heartbeats: a small file of each rank that says how far it is, and a reader of all of them."""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Lock, Thread
from typing import NamedTuple, Self

from setpoint.config import RunError
from setpoint.files.atomic import write_json

FOLDER = "heartbeats"
"""In the run directory."""
START, END, FAILED = "start", "end", "failed"
"""Phases outside of the loop, and how a session has ended."""
MISSED = 3
"""Beats that may fail to come before a rank counts as gone."""


class Progress(NamedTuple):
    """What a rank does.

    Arguments:
        phase: "start", "step", "evaluate", "save", "end" or "failed".
        step: the last one that was taken.
        loss: of that step.
        checkpoint: the name of the newest one.
    """

    phase: str
    step: int | None = None
    loss: float | None = None
    checkpoint: str | None = None


@dataclass(frozen=True, slots=True)
class Beat:
    """What one heartbeat file says.

    Arguments:
        every: seconds between two beats.
        time: when it was written, in seconds since 1970.
        since: at which beat this rank was first seen in this phase of this step.
    """

    rank: int
    world_size: int
    host: str
    pid: int
    every: float
    time: float
    since: float
    phase: str
    step: int | None = None
    loss: float | None = None
    checkpoint: str | None = None

    def is_gone(self, now: float) -> bool:
        """Whether beats have stopped coming, and not because the session has ended."""
        return self.phase not in (END, FAILED) and now - self.time > MISSED * self.every

    def stands_still(self, now: float) -> float:
        """Seconds for which this rank has made no progress; 0 where its session has ended."""
        return 0.0 if self.phase in (END, FAILED) else now - self.since


def read_heartbeats(run: Path | str) -> list[Beat]:
    """What the ranks of a run have said last, by rank; a file that is no heartbeat is left out."""
    found: list[Beat] = []
    for path in Path(run, FOLDER).glob("rank-*.json"):
        try:
            found.append(Beat(**json.loads(path.read_bytes())))
        except (OSError, ValueError, TypeError):
            continue
    return sorted(found, key=lambda beat: beat.rank)


class Heart:
    """Writes the heartbeat of one rank while it is open, in a thread that a hang does not stop.

    The first one is written before `__enter__` returns, and the last one says how it ended. One
    that cannot be written is no reason to end a run: the next one is tried, and `note` hears of
    the first.

    Arguments:
        run: the run directory.
        every: seconds.
        note: shows a line to people.

    Raises:
        RunError: the folder, or the first heartbeat, cannot be written.
    """

    def __init__(
        self, run: Path, every: float, rank: int, world_size: int, note: Callable[[str], None]
    ) -> None:
        self.folder, self.every = run / FOLDER, every
        self.rank, self.world_size = rank, world_size
        self.note = note
        self.look: Callable[[], Progress] = lambda: Progress(START)
        """Says what this rank does; called by the thread."""
        self.missed = 0
        self._last: tuple[str, int | None] | None = None
        self._since = 0.0
        self._ended = Event()
        self._lock = Lock()
        self._thread = Thread(target=self._go_on, name="setpoint-heartbeat", daemon=True)

    @property
    def path(self) -> Path:
        """The file of this rank."""
        return self.folder / f"rank-{self.rank}.json"

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(exist_ok=True)
            for left in self.folder.glob(f"{self.path.name}.tmp-*"):
                left.unlink()  # by a process that was killed
            for other in self.folder.glob("rank-*.json") if self.rank == 0 else ():
                number = other.stem.removeprefix("rank-")
                if number.isdecimal() and int(number) >= self.world_size:
                    other.unlink(missing_ok=True)  # of a session with more ranks
        except OSError as error:
            raise RunError(f"{self.folder} cannot be written: {error.strerror}") from error
        self.beat(self.look())
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._try(self.look()._replace(phase=END if kind is None else FAILED))

    def beat(self, doing: Progress) -> None:
        """Write one.

        Raises:
            RunError: it cannot be written; the one before is unchanged.
        """
        with self._lock:
            now = time.time()
            if (doing.phase, doing.step) != self._last:
                self._last, self._since = (doing.phase, doing.step), now
            finite = doing.loss is not None and math.isfinite(doing.loss)
            beat = Beat(
                self.rank,
                self.world_size,
                socket.gethostname(),
                os.getpid(),
                self.every,
                now,
                self._since,
                doing.phase,
                doing.step,
                doing.loss if finite else None,
                doing.checkpoint,
            )
            write_json(self.path, asdict(beat))

    def _go_on(self) -> None:
        while not self._ended.wait(self.every):
            self._try(self.look())

    def _try(self, doing: Progress) -> None:
        try:
            self.beat(doing)
        except RunError as error:
            self.missed += 1
            if self.missed == 1:
                self.note(f"heartbeat: {error}")
