"""What a tracker is: where rows of metrics go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What goes with a run to those that show it.

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
        """What a checkpoint keeps, as JSON has it; nothing where it is empty."""
        return {}

    def close(self) -> None:
        """Called when a session ends, after an error, too."""
