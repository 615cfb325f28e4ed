"""Status of a run, by its events: the words of lists, comparisons, sweeps and reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

FINISHED, STOPPED, FAILED, RUNNING, KILLED = "finished", "stopped", "failed", "running", "killed"
"""At the end of its duration; on request; by an error; a process trains it; without an event."""
STATUSES = (FINISHED, STOPPED, FAILED, RUNNING, KILLED)
BEGINS = ("start", "resume", "restart")
"""Events that begin a session."""


def status_of(events: Sequence[Mapping[str, Any]], is_alive: Callable[[], bool]) -> str:
    """The status of a run.

    Arguments:
        is_alive: True if a process trains it; asked where the events name no end.
    """
    for event in reversed(events):
        if event.get("event") == "end":
            return FINISHED if event.get("status") == 0 else STOPPED
        if event.get("event") == "fault":
            return FAILED
        if event.get("event") in BEGINS:
            break
    return RUNNING if is_alive() else KILLED


def last_step(events: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> int:
    """The step that a run is at: that of its newest event or row, which a rollback lowers."""
    newest = (next((step for row in reversed(part) if type(step := row.get("step")) is int), 0)
              for part in (events, rows))  # fmt: skip
    return max(newest)
