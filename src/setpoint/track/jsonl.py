"""JSON lines at full precision: metric rows and the events of a run."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Self

from setpoint.config import RunError, SetpointError
from setpoint.files.atomic import MOST, complete_lines, not_linked

from .console import now
from .redact import without_secrets
from .trackers import Tracker

if TYPE_CHECKING:
    from .config import Jsonl
    from .run_directory import RunDirectory

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class JsonlWriter:
    """Appends rows to a file; each row is passed to the operating system before `write` returns.

    A killed process loses no rows; a power failure loses at most the rows after the last `sync`. An
    incomplete last line is dropped.

    Raises:
        SetpointError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = Lock()  # a thread that saves checkpoints also writes events
        try:
            self._descriptor = not_linked(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            self.offset = _end_of_whole_lines(self._descriptor)
            """Length of the file in bytes, for checkpoints and `truncate`."""
            os.ftruncate(self._descriptor, self.offset)
        except OSError as error:
            raise SetpointError(f"{path} cannot be written: {error.strerror}") from error

    def write(self, row: Mapping[str, Any]) -> None:
        """Append a row.

        Arguments:
            row: JSON data. NaN and the infinities become the strings `NaN`, `Infinity` and
                `-Infinity`, since JSON lacks them; `read_jsonl` converts them back.

        Raises:
            RunError: the disk is full; the file ends with the previous row, complete.
            TypeError: a value is not JSON data.
        """
        line = memoryview((json.dumps(plain_numbers(row), allow_nan=False) + "\n").encode())
        with self._lock:
            written = 0
            try:
                while written < len(line):
                    written += os.write(self._descriptor, line[written:])
            except OSError as error:
                # If even this fails, the torn line is dropped when the file is next opened.
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, self.offset)
                raise self._refusal(error) from error
            self.offset += written

    def sync(self) -> int:
        """Flush all rows to disk, before a checkpoint refers to them.

        Raises:
            RunError: the disk reports an error.
        """
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._refusal(error) from error
        return self.offset

    def truncate(self, offset: int) -> None:
        """Drop the rows after an earlier `offset`, when resuming from an older checkpoint.

        Raises:
            RunError: the file is shorter, or no row ends at the offset, so it is not the same file.
        """
        try:
            if offset > self.offset:
                raise RunError(
                    f"{self.path} has {self.offset} bytes, but the checkpoint was saved when it "
                    f"had {offset}: rows are missing; restore the file or start a new run"
                )
            if offset and os.pread(self._descriptor, 1, offset - 1) != b"\n":
                raise RunError(
                    f"{self.path} has no end of a row at byte {offset}, its size when the "
                    f"checkpoint was saved: it was changed since then; restore it or start a new "
                    f"run"
                )
            os.ftruncate(self._descriptor, offset)
        except OSError as error:
            raise self._refusal(error) from error
        self.offset = offset

    def close(self) -> None:
        """Close the file, which is complete even without this call."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refusal(self, error: OSError) -> RunError:
        return RunError(f"{self.path} cannot be written: {error.strerror}")


class EventLog:
    """The history of a run over all sessions.

    Unlike metrics, events are never dropped on resume: rollbacks are part of the history.

    Raises:
        SetpointError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._writer = JsonlWriter(path)
        self.listeners: list[Callable[[str, dict[str, Any]], None]] = []
        """Called with each event and its details, after it was written."""

    def write(self, event: str, **details: Any) -> None:
        """Append an event such as `start`, `save` or `end` with the current time, and flush it.

        Raises:
            RunError: the disk is full or fails.
        """
        self._writer.write({"time": now(), "event": event, **without_secrets(details)})
        self._writer.sync()
        for listener in self.listeners:
            listener(event, details)

    def close(self) -> None:
        """Close the file, which is complete even without this call."""
        self._writer.close()


class NoEvents(EventLog):
    """Discards events, on ranks other than the main one."""

    def __init__(self) -> None:
        self.listeners = []

    def write(self, event: str, **details: Any) -> None:
        """Drop the event."""

    def close(self) -> None:
        """See `EventLog.close`."""


class JsonlTracker(Tracker):
    """Writes `metrics.jsonl`; checkpoints record its length."""

    def __init__(self, config: Jsonl, *, run_directory: RunDirectory) -> None:
        self._path = run_directory.metrics
        self._opened: JsonlWriter | None = None

    @property
    def _writer(self) -> JsonlWriter:
        assert self._opened is not None
        return self._opened

    def open(self, step: int, state: Mapping[str, Any], note: Callable[[str], None]) -> None:
        """Open the file, and drop the rows of lost steps."""
        self._opened = JsonlWriter(self._path)
        self.rewind(step, state, note)

    def rewind(self, step: int, state: Mapping[str, Any], note: Callable[[str], None]) -> None:
        """Drop the rows of later steps."""
        offset = state.get("offset", 0)
        if self._writer.offset < offset:
            note(f"{self._writer.path} has no rows of steps before {step}")
        self._writer.truncate(min(offset, self._writer.offset))

    def write(self, row: dict[str, Any]) -> None:
        """Append a row; see `JsonlWriter.write`."""
        self._writer.write(row)

    def flush(self) -> None:
        """Wait until all rows are on disk."""
        self._writer.sync()

    def state_dict(self) -> dict[str, Any]:
        """The length of the file in bytes."""
        return {"offset": self._writer.offset}

    def close(self) -> None:
        """Close the file."""
        if self._opened is not None:
            self._opened.close()


def read_jsonl(
    path: Path, damaged: list[str] | None = None, offset: int = 0
) -> list[dict[str, Any]]:
    """Read rows written by `JsonlWriter`, even while it is writing.

    Arguments:
        damaged: receives messages about lines that are not JSON, which are skipped; None: such
            lines are errors.
        offset: byte at which to begin, the start of a row.

    Returns:
        the rows, without an incomplete last line.

    Raises:
        SetpointError: the file cannot be read, or a line is not JSON and `damaged` is None.
    """
    rows: list[dict[str, Any]] = []
    try:
        with path.open("rb") as file:
            file.seek(offset)
            for number, line in enumerate(complete_lines(file), start=1):
                try:
                    if line is None:
                        raise ValueError(f"it has more than {MOST >> 20} MiB")
                    read: Any = json.loads(line)
                    if not isinstance(read, dict):
                        raise ValueError("it is not a JSON object")
                    rows.append({key: restored_numbers(value) for key, value in read.items()})
                except (ValueError, RecursionError) as error:
                    reason = f"{path}:{number} is not a row: {error}"
                    if damaged is None:
                        raise SetpointError(reason) from error
                    damaged.append(reason)
    except OSError as error:
        raise SetpointError(f"{path} cannot be read: {error.strerror}") from error
    return rows


def readable_rows(path: Path, offset: int = 0) -> list[dict[str, Any]]:
    """The rows of a file, like `read_jsonl`, without damaged lines; empty if it is missing."""
    return read_jsonl(path, [], offset) if path.exists() else []


def since_restart(events: Path) -> list[dict[str, Any]]:
    """The readable rows of `events.jsonl` since the run last started over."""
    rows = readable_rows(events)
    starts = [number for number, row in enumerate(rows) if row.get("event") == "restart"]
    return rows[starts[-1] :] if starts else rows


def whole_lines(path: Path) -> Iterator[bytes]:
    """The complete lines of a file, without line breaks.

    Raises:
        OSError: the file cannot be read, or a line has `MOST` bytes.
    """
    with path.open("rb") as file:
        for line in complete_lines(file):
            if line is None:
                raise OSError(errno.EFBIG, f"a line has more than {MOST >> 20} MiB", str(path))
            yield line[:-1]


def _end_of_whole_lines(descriptor: int, block: int = 65536) -> int:
    """Offset after the last line break of a file; 0 without one."""
    end = os.fstat(descriptor).st_size
    while end:
        start = max(0, end - block)
        line_break = os.pread(descriptor, end - start, start).rfind(b"\n")
        if line_break >= 0:
            return start + line_break + 1
        end = start
    return 0


def plain_numbers(value: Any) -> Any:
    """Replace numbers that JSON lacks with strings: NaN, Infinity, -Infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: plain_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_numbers(item) for item in value]
    return value


def restored_numbers(value: Any) -> Any:
    """Inverse of `plain_numbers`."""
    if isinstance(value, str):
        return _NOT_FINITE.get(value, value)
    if isinstance(value, dict):
        return {key: restored_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [restored_numbers(item) for item in value]
    return value
