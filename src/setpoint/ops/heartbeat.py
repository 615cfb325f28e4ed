"""Heartbeats: one small file per rank with its step and phase, and their reader."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, Self

from setpoint.config import RunError
from setpoint.files.atomic import read_json, write_json
from setpoint.files.threads import Periodic
from setpoint.track.run_directory import HEARTBEATS

START, END, FAILED = "start", "end", "failed"
"""Phases outside of the loop, and ends of a session."""
MISSED = 3
"""Missing heartbeats after which a rank counts as gone."""


class Standing(NamedTuple):
    """State of a rank.

    Arguments:
        phase: "start", "step", "evaluate", "save", "end" or "failed".
        step: the last completed step.
        loss: the loss of that step.
        checkpoint: the name of the newest checkpoint.
    """

    phase: str
    step: int | None = None
    loss: float | None = None
    checkpoint: str | None = None


@dataclass(frozen=True, slots=True)
class Beat:
    """Content of a heartbeat file.

    Arguments:
        every: seconds between two beats.
        time: time of writing, in seconds since 1970.
        since: time at which the rank entered this phase of this step.
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
        """True if heartbeats stopped although the session has not ended."""
        return self.phase not in (END, FAILED) and now - self.time > MISSED * self.every

    def stalled_seconds(self, now: float) -> float:
        """Seconds without progress; 0 if the session has ended."""
        return 0.0 if self.phase in (END, FAILED) else now - self.since


def read_heartbeats(run: Path | str) -> list[Beat]:
    """The last heartbeat of each rank of a run, by rank."""
    beats: list[Beat] = []
    for path in Path(run, HEARTBEATS).glob("rank-*.json"):
        with suppress(OSError, ValueError, TypeError):
            beats.append(Beat(**read_json(path)))
    return sorted(beats, key=lambda beat: beat.rank)


class Heart:
    """Writes a rank's heartbeats from a thread, which keeps running if training hangs.

    The first heartbeat is written before `__enter__` returns, and the last one states how the
    session ended. A failed write does not end the run; `note` receives a line about the first
    failure.

    Arguments:
        run: the run directory.
        every: seconds between two beats.
        note: prints a line for the user.

    Raises:
        RunError: the folder, or the first heartbeat, cannot be written.
    """

    def __init__(
        self, run: Path, every: float, rank: int, world_size: int, note: Callable[[str], None]
    ) -> None:
        self.folder, self.every, self.note = run / HEARTBEATS, every, note
        self.rank, self.world_size = rank, world_size
        self.path = self.folder / f"rank-{rank}.json"
        self.poll: Callable[[], Standing] = lambda: Standing(START)
        """The state of this rank; called from the thread."""
        self._missed = 0
        self._last: tuple[str, int | None] | None = None
        self._since = 0.0
        self._periodic = Periodic(every, lambda: self._try(self.poll()), "setpoint-heartbeat")

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(exist_ok=True)
            for left in self.folder.glob(f"{self.path.name}.tmp-*"):
                left.unlink()  # left by a killed process
            for other in self.folder.glob("rank-*.json") if self.rank == 0 else ():
                number = other.stem.removeprefix("rank-")
                if number.isdecimal() and int(number) >= self.world_size:
                    other.unlink(missing_ok=True)  # left by a session with more ranks
        except OSError as error:
            raise RunError(f"{self.folder} cannot be written: {error.strerror}") from error
        self._beat(self.poll())
        self._periodic.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._periodic.end()
        self._try(self.poll()._replace(phase=END if kind is None else FAILED))

    def _beat(self, standing: Standing) -> None:
        """Write a heartbeat; the main thread writes the first and the last one.

        Raises:
            RunError: the heartbeat cannot be written.
        """
        now, (phase, step, loss, checkpoint) = time.time(), standing
        if (phase, step) != self._last:
            self._last, self._since = (phase, step), now
        beat = Beat(
            self.rank,
            self.world_size,
            socket.gethostname(),
            os.getpid(),
            self.every,
            now,
            self._since,
            phase,
            step,
            loss if loss is not None and math.isfinite(loss) else None,
            checkpoint,
        )
        write_json(self.path, asdict(beat))

    def _try(self, standing: Standing) -> None:
        try:
            self._beat(standing)
        except RunError as error:
            self._missed += 1
            if self._missed == 1:
                self.note(f"heartbeat: {error}")
