"""Checkpoints that are written while the run goes on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from setpoint.checkpoint.store import CheckpointStore
from setpoint.config import RunError, SetpointError
from setpoint.files.tensor_file import HostMemory
from setpoint.files.threads import Background
from setpoint.parallel.world import World, first_line
from setpoint.train.record.ranks import OnSaved, SharedStore, Taken, ignore
from setpoint.train.run_status import format_newest


@dataclass(slots=True)
class Pending:
    """A save that has begun.

    Arguments:
        written: its directory, once it is there whole.
    """

    taken: Taken
    memory: HostMemory
    on_saved: OnSaved
    written: Future[Path] = field(init=False)

    def settle(self) -> None:
        """Copy what is not copied yet; where that fails, no checkpoint comes of it."""
        try:
            self.memory.settle()
        except Exception as error:
            self.taken.refused = error


class BackgroundStore(SharedStore):
    """Checkpoints that a thread of each rank writes while the run goes on.

    A save returns once the states are copied to host memory, but for those that stay still, or what
    a save before has come to says that the run cannot go on. The threads of all ranks talk in a
    process group of their own. What is pending is the same on all ranks, which hear of its end at
    the same point of the run: at `look`, `wait`, or a save that finds no place.

    Arguments:
        in_flight: saves that may have begun and not ended.
        pinned: whether tensors are copied to page-locked memory.
        timeout: seconds that ranks wait for each other while they write.
    """

    def __init__(
        self, world: World, inner: CheckpointStore, in_flight: int, pinned: bool, timeout: float
    ) -> None:
        super().__init__(world, inner)
        self.in_flight, self.pinned = in_flight, pinned
        self._writers = world.apart("checkpoint", timeout)
        self._thread = Background("setpoint-checkpoint")
        self._pending: deque[Pending] = deque()
        self._free: list[HostMemory] = []

    @property
    def is_writing(self) -> bool:
        """See `SharedStore.is_writing`."""
        return any(not pending.written.done() for pending in tuple(self._pending))

    def save(
        self,
        step: int,
        tensors: Mapping[str, Mapping[str, Tensor]],
        state: Mapping[str, Any],
        metric: float | None = None,
        texts: Mapping[str, str | bytes] | None = None,
        on_saved: OnSaved = ignore,
        still: Iterable[Tensor] = (),
    ) -> None:
        """See `SharedStore.save`; what the caller changes afterwards is not in it.

        Raises:
            RunError: that an earlier save has failed.
        """
        while len(self._pending) >= self.in_flight:
            self._finish()
        memory = self._free.pop() if self._free else HostMemory(self.pinned)
        memory.clear(still)
        taken = self.stage(step, tensors, state, metric, texts, memory)
        pending = Pending(taken, memory, on_saved)

        def write() -> Path:
            pending.settle()
            return self.write(taken, self._writers)

        pending.written = self._thread.submit(write)
        self._pending.append(pending)

    def too_little_memory(self, taken: Taken) -> tuple[str, str]:
        """See `SharedStore.too_little_memory`."""
        why = (
            f"there is too little host memory for its copy, which takes {taken.size / 1e6:,.1f} MB "
            f"on this rank"
        )
        fewer = f", or fewer than checkpoint.in_flight = {self.in_flight} of them"
        return why, "checkpoint.mode = sync, which copies one tensor at a time" + fewer * (
            self.in_flight > 1
        )

    def settle(self) -> None:
        """See `SharedStore.settle`."""
        for pending in self._pending:
            pending.settle()

    def look(self) -> None:
        """See `SharedStore.look`."""
        while self._pending:
            written = self._pending[0].written
            if self.world.any(not written.done()):
                return
            self._finish()

    def wait(self, timeout: float | None = None) -> None:
        """See `SharedStore.wait`."""
        until = None if timeout is None else time.monotonic() + timeout
        while self._pending:
            ended = self._ends(self._pending[0], until)
            if self.world.any(not ended):
                raise self._give_up(timeout)
            self._finish()

    def close(self, timeout: float | None = None) -> list[tuple[int, str]]:
        """See `SharedStore.close`."""
        failed: list[tuple[int, str]] = []
        until = None if timeout is None else time.monotonic() + timeout
        while self._pending:
            pending = self._pending[0]
            try:
                if not self._ends(pending, until):
                    raise self._give_up(timeout)
                self._finish()
            except Exception as error:
                step, text = pending.taken.step, str(error)
                if not isinstance(error, SetpointError):
                    text = self.inner.not_saved(step, first_line(error) or repr(error))
                failed.append((step, text))
        self._thread.end()
        return failed

    def _finish(self) -> None:
        """Wait for the oldest save, and say what it has come to."""
        pending = self._pending[0]
        wait([pending.written])  # Ctrl-C leaves it pending
        self._pending.popleft()
        path = pending.written.result()
        self._free.append(pending.memory)
        pending.on_saved(path)

    @staticmethod
    def _ends(pending: Pending, until: float | None) -> bool:
        left = None if until is None else max(until - time.monotonic(), 0)
        return bool(wait([pending.written], left).done)

    def _give_up(self, timeout: float | None) -> RunError:
        """Let nothing that is still being written become a checkpoint."""
        first = self._pending[0].taken.step
        error = RunError(
            f"the checkpoint of step {first} is not written after checkpoint.wait_timeout = "
            f"{timeout:g} s, and is given up: the disk of {self.root} is too slow, or hangs. "
            f"{format_newest(self.root)}"
        )
        for pending in self._pending:
            pending.taken.refused = error
        self._pending.clear()
        return error
