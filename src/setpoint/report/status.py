"""How a run stands, by its events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

FINISHED, STOPPED, FAILED, RUNNING, ENDED = "finished", "stopped", "failed", "running", "killed"
"""finished its duration; left on request; by an error; a process works on it; without a word."""
STATUSES = (FINISHED, STOPPED, FAILED, RUNNING, ENDED)
BEGINS = ("start", "resume", "restart")
"""Events that begin a session."""


def last_word(events: Sequence[Mapping[str, Any]]) -> str:
    """How a run has ended, as its events say; `ENDED` where they do not."""
    for event in reversed(events):
        if event.get("event") == "end":
            return FINISHED if event.get("status") == 0 else STOPPED
        if event.get("event") == "fault":
            return FAILED
        if event.get("event") in BEGINS:
            break
    return ENDED
