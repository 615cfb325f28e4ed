"""What people see, kept in the run's log file as well."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock

from setpoint.config import RunError
from setpoint.files.atomic import not_linked

from .progress import Progress, Reading, reading_parts


class LoggedProgress(Progress):
    """Shows a run by another progress and writes each line with the time into a file.

    The reader of the output may leave, as `| head` does: the run goes on, the file has the rest.

    Arguments:
        path: the log file, made if it is not there; it only ever grows.

    Raises:
        RunError: if the file cannot be written.
    """

    def __init__(self, inner: Progress, path: Path, total_steps: int | None) -> None:
        self.inner = inner
        self.path = path
        self.total_steps = total_steps
        self._lock = Lock()
        try:
            # Closed by `close`.
            self._file = open(path, "a", 1, "utf-8", opener=not_linked)  # noqa: SIM115
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error.strerror}") from error

    def start(self) -> None:
        """See `Progress.start`."""
        self._show(lambda inner: inner.start())

    def advance(self, step: int) -> None:
        """See `Progress.advance`."""
        self._show(lambda inner: inner.advance(step))

    def show(self, reading: Reading) -> None:
        """See `Progress.show`."""
        self._write("  ".join(reading_parts(reading, self.total_steps)))
        self._show(lambda inner: inner.show(reading))

    def note(self, text: str) -> None:
        """See `Progress.note`."""
        self._write(text)
        self._show(lambda inner: inner.note(text))

    def log(self, text: str) -> None:
        """Write lines into the file alone."""
        self._write(text)

    def work(self, what: str, done: int, total: int | None, now: bool = False) -> None:
        """Show it; the file keeps what stays."""
        self._show(lambda inner: inner.work(what, done, total, now))

    def stop(self) -> None:
        """See `Progress.stop`."""
        self._show(lambda inner: inner.stop())

    def close(self) -> None:
        """Close the file; it is complete with or without this."""
        with suppress(OSError):  # of a line that was refused when it was written
            self._file.close()

    def _show(self, act: Callable[[Progress], None]) -> None:
        try:
            act(self.inner)
        except BrokenPipeError:
            self.inner = Progress()

    def _write(self, text: str) -> None:
        time = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        try:
            with self._lock:
                self._file.write(f"{time} {text}\n")
        except OSError as error:
            raise RunError(f"{self.path} cannot be written: {error.strerror}") from error
