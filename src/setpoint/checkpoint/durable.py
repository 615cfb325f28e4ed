"""Files that are on the disk, not only in its cache, when the call returns."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterable
from mmap import mmap
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import NamedTuple, TypeVar

T = TypeVar("T")
PAUSE = 0.1
"""Seconds before a failed read is tried again."""

CHUNK = 4 << 20
"""Bytes that are read, written and taken into the digest at once."""
AHEAD = 4
"""Chunks that the disk may be ahead of the digest, or the digest of the disk."""


class Written(NamedTuple):
    """What was written to one file, as the manifest records it.

    Arguments:
        sha256: of the whole content, in hexadecimal digits.
    """

    size: int
    sha256: str

    @classmethod
    def of(cls, content: bytes) -> Written:
        """Size and SHA-256 of bytes in memory."""
        return cls(len(content), hashlib.sha256(content).hexdigest())


class Digest:
    """SHA-256 of a stream, which a thread computes while the disk reads or writes.

    Both leave the interpreter lock to others. Streams of one chunk have no thread.
    """

    def __init__(self) -> None:
        self.size = 0
        self._sha256 = hashlib.sha256()
        self._chunks: Queue[bytes | memoryview | None] = Queue(AHEAD)
        self._thread: Thread | None = None

    def update(self, chunk: bytes | memoryview) -> None:
        """Take the next bytes, which must not change before the end."""
        self.size += len(chunk)
        if self.size <= CHUNK:
            self._sha256.update(chunk)
            return
        if self._thread is None:
            self._thread = Thread(target=self._run, name="setpoint-digest", daemon=True)
            self._thread.start()
        self._chunks.put(chunk)

    def _run(self) -> None:
        while (chunk := self._chunks.get()) is not None:
            self._sha256.update(chunk)

    def end(self) -> Written:
        """Size and digest of what was given."""
        if self._thread is not None:
            self._chunks.put(None)
            self._thread.join()
            self._thread = None
        return Written(self.size, self._sha256.hexdigest())


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> Written:
    """Write a new file and wait until the disk has it.

    The digest is taken from memory while writing, so what the disk returns later is compared with
    what was meant and not with what arrived.

    Arguments:
        path: the file; it must not exist.
        chunks: the content in pieces of bytes (a memoryview must have the format `B`).

    Returns:
        size and SHA-256 of the content.

    Raises:
        OSError: if the file cannot be created or the disk is full; a part of it may remain.
    """
    digest = Digest()
    try:
        with open(path, "xb") as file:
            for chunk in map(memoryview, chunks):
                for start in range(0, len(chunk), CHUNK):
                    part = chunk[start : start + CHUNK]
                    digest.update(part)
                    file.write(part)
                    _begin_to_flush(file.fileno(), digest.size - len(part), len(part))
            file.flush()
            os.fsync(file.fileno())
    finally:
        written = digest.end()
    return written


def _begin_to_flush(descriptor: int, start: int, size: int) -> None:
    """Let the disk begin with what was written last, so that little is left to be waited for.

    Linux writes dirty pages that it is advised to drop, and drops those that are clean.
    """
    if size == CHUNK and hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, start, size, os.POSIX_FADV_DONTNEED)


def retried(read: Callable[[Path], T], path: Path) -> T:
    """Read a file, once more if that fails: disks and network file systems have hiccups.

    Raises:
        OSError: if it fails twice.
    """
    try:
        return read(path)
    except OSError:
        time.sleep(PAUSE)
        return read(path)


def digest_file(path: Path) -> Written:
    """Size and SHA-256 of a file as it is on the disk.

    Raises:
        OSError: if it cannot be read.
    """
    digest = Digest()
    try:
        with open(path, "rb", buffering=0) as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
    finally:
        written = digest.end()
    return written


def read_file(path: Path) -> tuple[memoryview, Written]:
    """Read a file that is there once: its content, and size and SHA-256 of that very content.

    Returns:
        memory of its own, not a view of the file, and what was read.

    Raises:
        OSError: if it cannot be read.
    """
    digest = Digest()
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            # What bytearray would fill with zeros first.
            rest = content = memoryview(mmap(-1, max(size, 1)))[:size]
            while count := file.readinto(rest[:CHUNK]):
                digest.update(rest[:count])
                rest = rest[count:]
    finally:
        written = digest.end()
    return content, written


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory (new, renamed, removed) are on the disk.

    Raises:
        OSError: if the disk reports an error.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a directory and say so; they order names themselves.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
