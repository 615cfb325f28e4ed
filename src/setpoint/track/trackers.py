"""Trackers: the protocol, the background thread, and all trackers of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from setpoint.config import RunError, SetpointError
from setpoint.files.threads import Worker

from .config import ServiceConfig, TrackerConfig

if TYPE_CHECKING:
    from .run_directory import RunDirectory


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Description of a run for trackers.

    Arguments:
        run_id: 32 hexadecimal digits, the same in all sessions of a run directory.
        config: the resolved configuration, as nested plain data.
        origins: the origin of each value, as recorded.
        environment: code, packages and machine, as recorded.
        session: number of starts, resumes and rollbacks so far.
        description: the description of the run.
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
    """Receives rows of metrics; only `write` is required.

    User-defined trackers need not be subclasses: any object with `write(row)`, and optionally
    `rewind(step)` and `close()`, is valid.

    A tracker runs in a separate thread with a bounded queue: an exception is shown, and the row is
    lost. A tracker that overrides `state_dict` or `flush` is synchronous: it is called between
    steps, and an exception ends the run. The class attribute `synchronous` overrides this choice.
    """

    def describe(self, facts: RunFacts) -> None:
        """Called once, before `open`."""

    def open(self, step: int, state: Mapping[str, Any], note: Callable[[str], None]) -> None:
        """Called once, before the first row of a session.

        Arguments:
            step: start of the session; later steps are logged again. 0 for a new run.
            state: result of `state_dict` in the resumed checkpoint; empty without one.
            note: prints a line for the user.
        """

    def rewind(self, step: int, state: Mapping[str, Any], note: Callable[[str], None]) -> None:
        """Called on a rollback to a checkpoint.

        Arguments:
            step: the step of the checkpoint; later steps are logged again, with other values.
            state: result of `state_dict` in the checkpoint.
            note: prints a line for the user.
        """

    def write(self, row: dict[str, Any]) -> None:
        """Accept one row."""
        ...

    def flush(self) -> None:
        """Called before a checkpoint is saved, which relies on earlier rows being written."""

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint, as JSON data; empty state is not saved."""
        return {}

    def close(self) -> None:
        """Called at the end of a session, even after an error."""


LIMIT = 10_000
"""Rows that may wait."""
unfinished: list[str] = []
"""Trackers of this process that failed when they were closed.

At exit, their libraries may wait for their servers again, for minutes or forever.
"""


class Background(Tracker):
    """Runs a tracker in another thread, so that it never stops or slows training.

    Exceptions are shown and counted. A tracker that cannot be opened stays off for the session. A
    row that fails, or arrives when the queue is full, is lost only for this tracker.

    Arguments:
        name: the displayed name.
        inner: the tracker; used only by the thread, starting with `open`.
        limit: maximum number of queued rows.
        patience: seconds that the end of a session waits for the rows.
        required: whether `open` waits that long for the tracker, too, and fails on a timeout.
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
        self._id = facts.run_id
        self.inner.describe(facts)

    def open(self, step: int, state: Mapping[str, Any], note: Callable[[str], None]) -> None:
        """Open the tracker in the thread.

        Raises:
            RunError: the tracker is required and cannot be opened in time.
        """
        self._note = note
        # The service knows the run by the name of its first session.
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
                f"login and a connection, or required = false, which continues without it"
            )

    def rewind(self, step: int, state: Mapping[str, Any], note: Callable[[str], None]) -> None:
        self._submit(lambda: self.inner.rewind(step, state, self._say))

    def write(self, row: dict[str, Any]) -> None:
        """Queue a row, and show messages from the thread."""
        row = dict(row)
        if not self._submit(lambda: self.inner.write(row)):
            self.dropped += 1
            if not self._off:
                self._say(f"is slow: {self.limit:,} rows are waiting, and further ones are dropped")
        self._show()

    def flush(self) -> None:
        """Show messages from the thread; checkpoints do not rely on the rows of a service."""
        self._show()

    def state_dict(self) -> dict[str, Any]:
        """The run's id at the service."""
        return {} if self._id is None else {"id": self._id}

    def close(self) -> None:
        """Wait for the rows to be written, and report lost ones."""
        if self._worker is not None:
            self._worker.submit(self._close)
            if not self._worker.end(self.patience) and not self._off:
                rows = max(0, self._worker.waiting - 2)  # closing and ending wait, too
                lost = f"{rows:,} are" if rows else "the last ones may be"
                self._say(f"did not receive its rows within {self.patience:g} s: {lost} not sent")
        if self.dropped:
            self._say(f"lost {self.dropped:,} rows of this session")
        self._show()

    def _submit(self, task: Callable[[], None]) -> bool:
        if self._off or self._worker is None or self._worker.waiting >= self.limit:
            return False
        self._worker.submit(lambda: self._do(task))
        return True

    def _do(self, task: Callable[[], None]) -> None:
        if self._off:  # unknown when the task was queued
            self.dropped += 1
            return
        try:
            task()
        # No error of a service is a reason to stop a run.
        except Exception as error:
            self.dropped += 1
            self._say(f"failed: {_reason(error)}; training goes on")

    def _open(self, step: int, state: Mapping[str, Any]) -> None:
        try:
            self.inner.open(step, state, self._say)
        except BaseException as error:  # some services exit the process without a login
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
        """Queue a message for the training thread; each message is shown once."""
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
"""Name of the tracker of `metrics.jsonl`."""


class _Rows(Tracker):
    """A tracker around a user-defined object with `write`."""

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


def _driven(name: str, section: TrackerConfig, built: Any) -> Tracker:
    """The tracker, run in a separate thread unless it is synchronous."""
    if not isinstance(built, Tracker):
        return Background(name, _Rows(built))
    if _is_exact(type(built)):
        return built
    if not isinstance(section, ServiceConfig):
        return Background(name, built)
    return Background(
        name,
        built,
        limit=section.queue,
        patience=section.patience,
        required=section.required,
    )


def _is_exact(kind: type) -> bool:
    """True if a tracker is synchronous: by its attribute, or because it has a state or a flush."""
    synchronous = getattr(kind, "synchronous", None)
    if synchronous is not None:
        return bool(synchronous)
    return any(
        getattr(kind, name) is not getattr(Tracker, name) for name in ("state_dict", "flush")
    )


class Trackers:
    """All trackers of a run; states of trackers that are not configured are kept.

    A session without the tracker of `metrics.jsonl` leaves the file for later sessions.
    """

    def __init__(self) -> None:
        self.built: dict[str, Tracker] = {}
        self.states: dict[str, dict[str, Any]] = {}

    def build(self, sections: Iterable[TrackerConfig], run: RunDirectory) -> None:
        """Build the trackers, without writing anything.

        Raises:
            SetpointError: a tracker has no method `write`, or a requirement is missing.
        """
        for section in sections:
            tag = str(type(section).__setpoint__.tag)
            same = sum(name.partition(".")[0] == tag for name in self.built)
            name = f"{tag}.{same}" if same else tag
            tracker = section.build(run_directory=run)
            if not callable(getattr(tracker, "write", None)):
                kind = type(tracker).__name__
                raise SetpointError(f"tracking.trackers: {kind} (type = {tag}) has no write(row)")
            self.built[name] = _driven(name, section, tracker)

    def open(self, facts: RunFacts, step: int, note: Callable[[str], None]) -> None:
        """Open each tracker at a step, after `load_state_dict`."""
        for name, tracker in self.built.items():
            tracker.describe(facts)
            tracker.open(step, self.states.get(name, {}), note)

    def rewind(self, step: int, note: Callable[[str], None]) -> None:
        """Rewind each tracker to a checkpoint, after `load_state_dict`."""
        for name, tracker in self.built.items():
            tracker.rewind(step, self.states.get(name, {}), note)

    def write(self, row: dict[str, Any]) -> None:
        """Write a row to each tracker."""
        for tracker in self.built.values():
            tracker.write(row)

    def write_beside(self, row: dict[str, Any]) -> None:
        """Write a row to all trackers except `metrics.jsonl`, whose rows a resume reproduces."""
        for name, tracker in self.built.items():
            if name != JSONL:
                tracker.write(row)

    def flush(self) -> None:
        """Flush each tracker."""
        for tracker in self.built.values():
            tracker.flush()

    def state_dict(self) -> dict[str, Any]:
        """The states of all trackers, for a checkpoint."""
        now = {name: tracker.state_dict() for name, tracker in self.built.items()}
        return {name: state for name, state in {**self.states, **now}.items() if state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load states from a checkpoint; they are passed to trackers when these are opened."""
        self.states = dict(state)

    @property
    def metrics_offset(self) -> int:
        """Length of `metrics.jsonl` in bytes at the loaded checkpoint; 0 without one."""
        return self.states.get(JSONL, {}).get("offset", 0)

    def close(self) -> None:
        """Close each tracker, even if others raise an error."""
        with ExitStack() as ending:
            for tracker in self.built.values():
                ending.callback(tracker.close)
