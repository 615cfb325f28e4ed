"""`events.jsonl`: what happened to a run and when; it only ever grows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .console import now
from .jsonl import JsonlWriter
from .redact import without_secrets


class EventLog:
    """The history of a run over all its starts.

    Unlike metrics, events are never dropped on resume: that a run went back is part of its history.

    Raises:
        SetpointError: if it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._writer = JsonlWriter(path)
        self.listeners: list[Callable[[str, dict[str, Any]], None]] = []
        """Called with each event and its details, when it has been written."""

    def write(self, event: str, **details: Any) -> None:
        """Append an event with the present time, and wait until the disk has it.

        Arguments:
            event: what happened, in a word: `start`, `resume`, `save`, `fault`, `end`.

        Raises:
            RunError: if the disk is full or fails.
        """
        self._writer.write({"time": now(), "event": event, **without_secrets(details)})
        self._writer.sync()
        for listener in self.listeners:
            listener(event, details)

    def close(self) -> None:
        """Close the file; it is complete with or without this."""
        self._writer.close()


class NoEvents(EventLog):
    """Writes nothing, where another rank writes what happens to the run."""

    def __init__(self) -> None:
        self.listeners = []

    def write(self, event: str, **details: Any) -> None:
        """See `EventLog.write`."""

    def close(self) -> None:
        """See `EventLog.close`."""
