"""Trackers: the protocol, a thread that drives one, and all trackers of a run as one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from setpoint.config import RunError, SetpointError
from setpoint.files.threads import Worker

if TYPE_CHECKING:
    from .config import TrackerConfig
    from .run_directory import RunDirectory


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Description of a run for those that show it.

    Arguments:
        run_id: 32 hexadecimal digits, the same in all sessions of a run directory.
        config: resolved, as nested plain data.
        origins: where each of its values comes from, as the record has it.
        environment: code, packages and machine, as the record has them.
        session: how often the run has begun, resumed or gone back so far.
        description: of the run, in words.
    """

    run_id: str
    name: str
    experiment: str | None
    fingerprint: str
    config: dict[str, Any]
    origins: dict[str, Any]
    environment: dict[str, Any]
    session: int = 1
    description: str | None = None


@runtime_checkable
class Tracker(Protocol):
    """Receives rows of metrics; subclasses may leave out all but `write`.

    Trackers of users need not be subclasses: an object with `write(row)`, and where it wants them
    `rewind(step)` and `close()`, is one as well.

    A thread of its own drives a tracker: what it raises is shown and the row lost, and what waits
    for it is bounded. One with a `state_dict` or `flush` of its own is exact: it is called between
    steps, and what it raises ends the run. A class says which by `synchronous = True` or `False`.
    """

    def describe(self, facts: RunFacts) -> None:
        """Called once, before `open`."""

    def open(self, step: int, state: Mapping[str, Any], note: Callable[[str], None]) -> None:
        """Called once, before the first row of a session.

        Arguments:
            step: where the session goes on; rows of later steps come again. 0 for a new run.
            state: what `state_dict` returned when the checkpoint was saved that the session goes
                on from; empty without one.
            note: shows a line to people.
        """

    def rewind(self, step: int, state: Mapping[str, Any], note: Callable[[str], None]) -> None:
        """Called when the run goes back to a checkpoint while the tracker is open.

        Arguments:
            step: that of the checkpoint; rows of later steps come again, with other numbers.
            state: what `state_dict` returned when it was saved.
            note: shows a line to people.
        """

    def write(self, row: dict[str, Any]) -> None:
        """Take one row."""
        ...

    def flush(self) -> None:
        """Called before a checkpoint that counts on the rows before it."""

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint, as JSON has it; nothing is kept where it is empty."""
        return {}

    def close(self) -> None:
        """Called when a session ends, after an error, too."""


LIMIT = 10_000
"""Rows that may wait."""
unfinished: list[str] = []
"""Trackers of this process that failed when they were closed.

When Python exits, their libraries may wait for their servers again, for minutes or for ever.
"""


class Background(Tracker):
    """Hands rows to a tracker in another thread, so that it never stops or slows training.

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
        self.limit, self.required = limit, required
        self.dropped = 0
        self._id: str | None = None
        self._worker: Worker | None = None
        self._lines: deque[str] = deque()
        self._shown: set[str] = set()
        self._note: Callable[[str], None] = lambda line: None
        self._off = ""

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
        self._worker = Worker(f"tracker {self.name}")
        opened = self._worker.submit(lambda: self._open(step, state))
        if not self.required:
            return
        try:
            opened.result(self.patience)
        except TimeoutError:
            self._off = f"no answer within patience = {self.patience:g} s"
        if self._off:
            self._lines.clear()
            raise RunError(
                f"tracker {self.name} is required and cannot be opened: {self._off}.\nValid: a "
                f"login and a connection, or required = false, which trains without it"
            )

    def rewind(self, step: int, state: Mapping[str, Any], note: Callable[[str], None]) -> None:
        """See `Tracker.rewind`; in the order of the rows."""
        self._submit(lambda: self.inner.rewind(step, state, self._say))

    def write(self, row: dict[str, Any]) -> None:
        """Take a row, and show the lines of the thread where the run shows its own."""
        row = dict(row)
        if not self._submit(lambda: self.inner.write(row)):
            self.dropped += 1
            if not self._off:
                self._say(f"is slow: {self.limit:,} rows wait, and further ones are dropped")
        self._show()

    def flush(self) -> None:
        """Show the lines of the thread; no checkpoint counts on the rows of a service."""
        self._show()

    def state_dict(self) -> dict[str, Any]:
        """The name by which the service knows the run."""
        return {} if self._id is None else {"id": self._id}

    def close(self) -> None:
        """Wait for the rows, and say how many are lost."""
        if self._worker is not None:
            self._worker.submit(self._close)
            if not self._worker.end(self.patience) and not self._off:
                rows = max(0, self._worker.waiting - 2)  # closing and the end wait as well
                lost = f"{rows:,} are" if rows else "the last ones may be"
                self._say(f"did not take its rows within {self.patience:g} s: {lost} not sent")
        if self.dropped:
            self._say(f"has lost {self.dropped:,} rows of this session")
        self._show()

    def _submit(self, task: Callable[[], None]) -> bool:
        if self._off or self._worker is None or self._worker.waiting >= self.limit:
            return False
        self._worker.submit(lambda: self._do(task))
        return True

    def _do(self, task: Callable[[], None]) -> None:
        if self._off:  # which was not known when the task came
            self.dropped += 1
            return
        try:
            task()
        # Whatever a service raises, it is no reason to stop a run.
        except Exception as error:
            self.dropped += 1
            self._say(f"failed: {_reason(error)}; training goes on")

    def _open(self, step: int, state: Mapping[str, Any]) -> None:
        try:
            self.inner.open(step, state, self._say)
        except BaseException as error:  # some end the process when they are not logged in
            self._off = _reason(error)
            self._say(f"is off in this session: {self._off}; training goes on")

    def _close(self) -> None:
        if self._off:
            return
        try:
            self.inner.close()
        except Exception as error:
            unfinished.append(self.name)
            self._say(f"failed when it was closed: {_reason(error)}")

    def _say(self, line: str) -> None:
        """Keep a line for the thread that trains; each is shown once."""
        if line not in self._shown and len(self._shown) < 20:
            self._shown.add(line)
            self._lines.append(f"tracker {self.name} {line}")

    def _show(self) -> None:
        while self._lines:
            self._note(self._lines.popleft())


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


JSONL = "jsonl"
OFFSET = "metrics_offset"
"""Name of the length of `metrics.jsonl` in a checkpoint."""
OTHERS = "trackers"
"""Name of the states of other trackers."""


class _Rows(Tracker):
    """An object of a user's that takes rows."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def open(self, step: int, state: Mapping[str, Any], note: Callable[[str], None]) -> None:
        if step:
            self.rewind(step, state, note)

    def rewind(self, step: int, state: Mapping[str, Any], note: Callable[[str], None]) -> None:
        if hasattr(self.inner, "rewind"):
            self.inner.rewind(step)

    def write(self, row: dict[str, Any]) -> None:
        self.inner.write(row)

    def close(self) -> None:
        if hasattr(self.inner, "close"):
            self.inner.close()


def _driven(name: str, built: Any) -> Tracker:
    """A tracker as it is driven: in a thread of its own, unless checkpoints count on it."""
    if not isinstance(built, Tracker):
        return Background(name, _Rows(built))
    if isinstance(built, Background) or _is_exact(type(built)):
        return built
    return Background(name, built)


def _is_exact(kind: type) -> bool:
    """True if a tracker is driven between steps, as it says or has a state or rows to flush."""
    synchronous = getattr(kind, "synchronous", None)
    if synchronous is not None:
        return bool(synchronous)
    return any(
        getattr(kind, name) is not getattr(Tracker, name) for name in ("state_dict", "flush")
    )


class Trackers:
    """All trackers of a run; states of those that it does not have now are kept.

    A session without `metrics.jsonl` leaves its rows as they are, so that a later one can go on
    with the file.
    """

    def __init__(self) -> None:
        self.built: dict[str, Tracker] = {}
        self.states: dict[str, dict[str, Any]] = {JSONL: {"offset": 0}}

    def build(self, sections: Iterable[TrackerConfig], run: RunDirectory) -> None:
        """Build the trackers; nothing of the run is written.

        Raises:
            SetpointError: one has no method `write`, or what it needs is not there.
        """
        for section in sections:
            tag = str(type(section).__setpoint__.tag)
            same = sum(name.partition(".")[0] == tag for name in self.built)
            name = f"{tag}.{same}" if same else tag
            tracker = section.build(run_directory=run)
            if not callable(getattr(tracker, "write", None)):
                kind = type(tracker).__name__
                raise SetpointError(f"tracking.trackers: {kind} (type = {tag}) has no write(row)")
            self.built[name] = _driven(name, tracker)

    def open(self, facts: RunFacts, step: int, note: Callable[[str], None]) -> None:
        """Open each tracker at a step; `load_state_dict` comes before."""
        for name, tracker in self.built.items():
            tracker.describe(facts)
            tracker.open(step, self.states.get(name, {}), note)

    def rewind(self, step: int, note: Callable[[str], None]) -> None:
        """Bring each to a checkpoint whose states were loaded before."""
        for name, tracker in self.built.items():
            tracker.rewind(step, self.states.get(name, {}), note)

    def write(self, row: dict[str, Any]) -> None:
        """Give a row to each."""
        for tracker in self.built.values():
            tracker.write(row)

    def write_beside(self, row: dict[str, Any]) -> None:
        """Give a row to each but `metrics.jsonl`, which holds what a resume writes again."""
        for name, tracker in self.built.items():
            if name != JSONL:
                tracker.write(row)

    def flush(self) -> None:
        """Let each bring its rows where they outlast the process."""
        for tracker in self.built.values():
            tracker.flush()

    def state_dict(self) -> dict[str, Any]:
        """The states of all, as a checkpoint holds them."""
        now = {name: tracker.state_dict() for name, tracker in self.built.items()}
        others = {name: state for name, state in {**self.states, **now}.items() if state}
        offset = others.pop(JSONL)["offset"]
        return {OFFSET: offset, **({OTHERS: others} if others else {})}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the states from a checkpoint; trackers get them when they are opened."""
        self.states = {JSONL: {"offset": state.get(OFFSET, 0)}, **state.get(OTHERS, {})}

    def close(self) -> None:
        """Close each, whatever the others raise."""
        with ExitStack() as ending:
            for tracker in self.built.values():
                ending.callback(tracker.close)
