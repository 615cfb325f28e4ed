"""A tracker that a thread of its own feeds, so that it never stops or slows training."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from setpoint.config import RunError

from .tracker import RunFacts, Tracker

LIMIT = 10_000
"""Rows that may wait."""
unfinished: list[str] = []
"""Trackers of this process that were not done, or failed, when they were closed.

When Python exits, their libraries may wait for their servers again, for minutes or for ever.
"""


class Background(Tracker):
    """Hands rows to a tracker in another thread.

    What it raises is shown and counted. A tracker that cannot be opened gets nothing more in the
    session; a row that it refuses, or that finds the queue full, is lost to it alone.

    Arguments:
        name: as people know it.
        inner: used by the thread alone, from `open` on.
        limit: rows that may wait.
        patience: seconds that the end of a session waits for the rows.
        required: whether `open` waits for it as long, and fails where it does.
    """

    def __init__(
        self,
        name: str,
        inner: Tracker,
        *,
        limit: int = LIMIT,
        patience: float = 30.0,
        required: bool = False,
    ) -> None:
        self.name, self.inner, self.patience = name, inner, patience
        self.dropped = 0
        self._id: str | None = None
        self._tasks: queue.Queue[Callable[[], None] | None] = queue.Queue(limit)
        self._lines: deque[str] = deque()
        self._said: set[str] = set()
        self._note: Callable[[str], None] = lambda line: None
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._off = False
        self._required = required
        self._opened = threading.Event()
        self._why_not = ""

    def describe(self, facts: RunFacts) -> None:
        """See `Tracker.describe`."""
        self._id = facts.run_id
        self.inner.describe(facts)

    def open(self, step: int, state: Mapping[str, Any], note: Callable[[str], None]) -> None:
        """Start the thread, which opens the tracker.

        Raises:
            RunError: the tracker is required and cannot be opened in time.
        """
        self._note = note
        # The name by which the service knows the run: that of its first session.
        self._id = state.get("id", self._id)
        state = {**state, "id": self._id}
        self._tasks.put(lambda: self._open(step, state))
        self._thread.start()
        if not self._required:
            return
        if not self._opened.wait(self.patience):
            self._why_not = f"no answer within patience = {self.patience:g} s"
        if self._why_not:
            self._off = True
            self._lines.clear()
            raise RunError(
                f"tracker {self.name} is required and cannot be opened: {self._why_not}.\nValid: a "
                f"login and a connection, or required = false, which trains without it"
            )

    def rewind(self, step: int, state: Mapping[str, Any], note: Callable[[str], None]) -> None:
        """See `Tracker.rewind`; in the order of the rows."""
        self._give(lambda: self.inner.rewind(step, state, self._say))

    def write(self, row: dict[str, Any]) -> None:
        """Take a row; what the thread has to say is shown here, where the run shows its lines."""
        row = dict(row)
        if not self._give(lambda: self.inner.write(row)):
            self.dropped += 1
            if not self._off:
                waiting = self._tasks.maxsize
                self._say(f"is slow: {waiting:,} rows wait, and further ones are dropped")
        self._show()

    def flush(self) -> None:
        """Nothing: no checkpoint counts on the rows of a service."""
        self._show()

    def state_dict(self) -> dict[str, Any]:
        """The name by which the service knows the run."""
        return {} if self._id is None else {"id": self._id}

    def close(self) -> None:
        """Wait for the rows, and say how many are lost."""
        end = time.monotonic() + self.patience
        ends = 0
        if self._thread.is_alive():
            with contextlib.suppress(queue.Full):
                self._tasks.put(None, timeout=self.patience)
                ends = 1
            self._thread.join(max(0.0, end - time.monotonic()))
        if self._thread.is_alive():
            unfinished.append(self.name)
            waiting = max(0, self._tasks.qsize() - ends)
            which = f"{waiting:,} are" if waiting else "the last ones may be"
            if not self._why_not:
                self._say(f"did not take its rows within {self.patience:g} s: {which} not sent")
        if self.dropped:
            self._say(f"has lost {self.dropped:,} rows of this session")
        self._show()

    def _give(self, task: Callable[[], None]) -> bool:
        if self._off:
            return False
        try:
            self._tasks.put_nowait(task)
        except queue.Full:
            return False
        return True

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            if self._off:  # what came before that was known
                self.dropped += 1
                continue
            try:
                task()
            # Whatever a service raises, it is no reason to stop a run.
            except Exception as error:
                self.dropped += 1
                self._say(f"failed: {_reason(error)}; training goes on")
        if not self._off:
            try:
                self.inner.close()
            except Exception as error:
                unfinished.append(self.name)
                self._say(f"failed when it was closed: {_reason(error)}")

    def _open(self, step: int, state: Mapping[str, Any]) -> None:
        try:
            self.inner.open(step, state, self._say)
        except BaseException as error:  # some end the process when they are not logged in
            self._off = True
            self._why_not = _reason(error)
            self._say(f"is off in this session: {_reason(error)}; training goes on")
        finally:
            self._opened.set()

    def _say(self, line: str) -> None:
        """Keep a line for the thread that trains; each is shown once."""
        if line not in self._said and len(self._said) < 20:
            self._said.add(line)
            self._lines.append(f"tracker {self.name} {line}")

    def _show(self) -> None:
        while self._lines:
            self._note(self._lines.popleft())


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
