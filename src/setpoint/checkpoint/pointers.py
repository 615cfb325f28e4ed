"""`latest` and `best`: text files that name a checkpoint and change in one step."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from setpoint.config import SetpointError
from setpoint.files.atomic import sync_directory
from setpoint.files.durable import retried, write_file

from .layout import PointerName, directory_name, step_of, temporary

MOST = 4096
"""Bytes that are read of a pointer at most."""


class UnreadPointer(SetpointError):
    """A pointer that is there and cannot be read, so that what it names is unknown."""


class StagedPointer:
    """A pointer's new content, already on the disk beside it.

    Staging first means that moving the pointer is a rename, which a full disk does not stop.

    Raises:
        OSError: if the content cannot be written.
    """

    def __init__(self, root: Path, name: PointerName, step: int) -> None:
        self.target = root / name
        self.staged = temporary(root, name, os.getpid())
        self.staged.unlink(missing_ok=True)
        try:
            write_file(self.staged, [f"{directory_name(step)}\n".encode()])
        except BaseException:
            self.discard()
            raise

    def move(self) -> None:
        """Let the pointer name the new checkpoint, from now on and after a power cut.

        Raises:
            OSError: if the rename fails.
        """
        os.replace(self.staged, self.target)
        sync_directory(self.target.parent)

    def discard(self) -> None:
        """Remove what was staged; nothing if it has been moved.

        What a failing disk does not let go is removed by the next session.
        """
        with suppress(OSError):
            self.staged.unlink()


def read_pointer(root: Path, name: PointerName) -> int | None:
    """The step that a pointer names.

    Raises:
        UnreadPointer: if the file cannot be read.
        SetpointError: if it holds no name of a checkpoint.
    """
    path = root / name
    if not os.path.lexists(path):
        return None
    try:
        content = retried(_read, path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnreadPointer(f"{path} cannot be read: {error.strerror}") from error
    step = step_of(content.decode("utf-8", "replace").removesuffix("\n"))
    if step is None:
        raise SetpointError(
            f"{path} names no checkpoint: it holds {content[:40]!r}, not a name like "
            f"{directory_name(100)}"
        )
    return step


def _read(path: Path) -> bytes:
    facts = os.stat(path)
    # A pipe would wait for somebody who writes to it.
    if not stat.S_ISREG(facts.st_mode):
        raise UnreadPointer(f"{path} cannot be read: it is not a regular file")
    if facts.st_size > MOST:
        raise SetpointError(f"{path} names no checkpoint: it has {facts.st_size} bytes")
    return path.read_bytes()


def readable_pointer(root: Path, name: PointerName) -> int | None:
    """As `read_pointer`, for those who can do without: a broken pointer counts as none."""
    try:
        return read_pointer(root, name)
    except SetpointError:
        return None


def point(root: Path, name: PointerName, step: int | None) -> None:
    """Let a pointer name another checkpoint, or none.

    Arguments:
        step: what it shall name; None removes the pointer.

    Raises:
        OSError: if the disk refuses.
    """
    if step is not None:
        StagedPointer(root, name, step).move()
        return
    (root / name).unlink(missing_ok=True)
    sync_directory(root)
