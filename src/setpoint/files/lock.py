"""The lock of a run directory: one process writes, and other processes can name it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
import weakref
from pathlib import Path

from setpoint.config import RunError, SetpointError
from setpoint.files.atomic import not_linked

BUSY = (errno.EWOULDBLOCK, errno.EACCES)
"""Error numbers if another process holds the lock."""
TRIES, PAUSE = 20, 0.01
"""Number of attempts, and seconds between; a process that only checks holds it briefly."""


def refuse_locked(path: Path) -> None:
    """Refuse a run directory locked by another process, without writing anything.

    Raises:
        SetpointError: names that process.
    """
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _write_error(path, error) from error
    try:
        # Shared: the ranks of a job check at the same time, and none of them keeps it.
        _flock(descriptor, fcntl.LOCK_SH)
    except OSError as error:
        if error.errno not in BUSY:
            return
        raise _busy_error(path) from None
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """True if a process holds the lock; False if that is unknown."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in BUSY
    finally:
        os.close(descriptor)
    return False


def _flock(descriptor: int, kind: int) -> None:
    """Lock an open file.

    Raises:
        OSError: another process has a conflicting lock, or locks are not supported.
    """
    for tries_left in reversed(range(TRIES)):
        try:
            return fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in BUSY or not tries_left:
                raise
        time.sleep(PAUSE)


def _is_same_file(descriptor: int, path: Path) -> bool:
    """True if a path refers to this open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _write_error(path: Path, error: OSError) -> RunError:
    return RunError(f"run directory {path.parent} cannot be written: {path.name}: {error.strerror}")


def _busy_error(path: Path) -> SetpointError:
    return SetpointError(
        f"run directory {path.parent} is in use by {holder(path)}; wait for it to end, stop "
        f"it, or choose another directory"
    )


class RunLock:
    """An exclusive lock on a file, in effect until it is released or the process ends.

    It is an `flock`, so the file of a dead process locks nothing. Forked children do not inherit
    it. If the file is removed before it is locked, its replacement is locked instead.

    Arguments:
        path: the file; created if missing, in an existing directory.

    Raises:
        SetpointError: another process holds the lock (named in the error).
        RunError: the file cannot be written or locked. A new one is then removed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_new = not os.path.lexists(path)
        """True if the file is new."""
        self._descriptor: int | None = None
        for _ in range(TRIES):
            descriptor = self._open()
            if _is_same_file(descriptor, path):
                break
            os.close(descriptor)
            self.is_new = True
        else:
            raise SetpointError(
                f"run directory {path.parent} cannot be locked: other processes keep removing "
                f"{path.name}; stop them, or choose another directory"
            )
        try:
            write_owner(descriptor)
        except OSError as error:
            self._remove_if_new()
            os.close(descriptor)
            raise _write_error(path, error) from error
        self._descriptor = descriptor
        _held_locks.add(self)

    def _open(self) -> int:
        """Open the file, and lock the opened file."""
        path = self.path
        try:
            descriptor = not_linked(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise _write_error(path, error) from error
        try:
            _flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            os.close(descriptor)
            if error.errno not in BUSY:
                self._remove_if_new()
                raise RunError(
                    f"run directory {path.parent} cannot be locked: {error.strerror}; "
                    "put it on a file system that supports flock"
                ) from error
            raise _busy_error(path) from None
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _remove_if_new(self) -> None:
        if self.is_new:
            self.path.unlink(missing_ok=True)

    def release(self) -> None:
        """Release the lock; the file stays, empty."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):  # a full disk must not keep the lock
                os.ftruncate(self._descriptor, 0)
            # Unlocking also affects a child forked at this moment, which still has its copy.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = None
        _held_locks.discard(self)

    def _close_copy(self) -> None:
        """Close the copy in a forked child, which would keep the lock alive."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_held_locks: weakref.WeakSet[RunLock] = weakref.WeakSet()


def _close_copies() -> None:
    for lock in list(_held_locks):
        lock._close_copy()


os.register_at_fork(after_in_child=_close_copies)


def write_owner(descriptor: int) -> None:
    """Write the owner of a lock into its file.

    Raises:
        OSError: the owner cannot be written.
    """
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, (json.dumps(owner) + "\n").encode(), 0)


def _is_alive(pid: int) -> bool:
    """True if a process runs on this host."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def holder(path: Path) -> str:
    """Name the process that holds the lock."""
    for _ in range(50):
        try:
            owner = json.loads(path.read_text())
            pid, host = int(owner["pid"]), str(owner["host"])
        except (OSError, ValueError, TypeError, KeyError):
            # The holder has the lock and is about to write its name.
            time.sleep(0.01)
            continue
        is_local = host == socket.gethostname()
        if is_local and not _is_alive(pid):
            # The text of a killed former holder; the current one will replace it.
            time.sleep(0.01)
            continue
        return f"process {pid}" if is_local else f"process {pid} on host {host}"
    return "another process"
