"""Files that are on the disk, not only in its cache, when the call returns."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, TypeVar

from .threads import in_threads

T = TypeVar("T")
PAUSE = 0.1
"""Seconds before a failed read is tried again."""

CHUNK = 4 << 20
"""Bytes that are written at once."""
PIECE = 256 << 10
"""Bytes that are read at once for their digest alone: what the processor's cache holds."""
PART = 16 << 20
"""Bytes that are worth a thread of their own."""


class Written(NamedTuple):
    """What was written to one file, as the manifest records it.

    Arguments:
        digest: BLAKE3 of the content in hexadecimal digits, as `b3sum` prints it: several times as
            fast as SHA-256, which would keep a good disk waiting.
    """

    size: int
    digest: str

    @staticmethod
    def of(content: bytes | memoryview) -> Written:
        """Size and digest of bytes in memory."""
        digest = Digest()
        digest.update(content)
        return digest.end()

    def difference(self, expected: Written) -> str:
        """In what a file that has this differs from what was expected; empty where it does not."""
        if self.size != expected.size:
            return f"has {self.size} bytes, not {expected.size}"
        if self != expected:
            return f"has the BLAKE3 {self.digest[:12]}.., not {expected.digest[:12]}.."
        return ""


class Digest:
    """Size and digest of a stream."""

    def __init__(self) -> None:
        from blake3 import blake3  # commands that read no digest start without it

        self.size, self._state = 0, blake3()

    def update(self, piece: bytes | memoryview) -> None:
        """Take the next bytes."""
        self.size += len(piece)
        self._state.update(piece)

    def end(self) -> Written:
        """Size and digest of what was given."""
        return Written(self.size, self._state.hexdigest())


def write_file(path: Path, pieces: Iterable[bytes | memoryview]) -> Written:
    """Write a new file and wait until the disk has it.

    The digest is taken from memory while writing, so what the disk returns later is compared with
    what was meant and not with what arrived.

    Arguments:
        path: the file; it must not exist.
        pieces: the content in pieces of bytes (a memoryview must have the format `B`).

    Returns:
        size and digest of the content.

    Raises:
        OSError: if the file cannot be created or the disk is full; a part of it may remain.
    """
    digest = Digest()
    with open(path, "xb") as file:
        flushed = 0
        for piece in map(memoryview, pieces):
            for start in range(0, len(piece), CHUNK):
                part = piece[start : start + CHUNK]
                digest.update(part)
                file.write(part)
                if digest.size - flushed >= CHUNK:
                    _begin_to_flush(file.fileno(), flushed, digest.size - flushed)
                    flushed = digest.size
        file.flush()
        os.fsync(file.fileno())
        return digest.end()


def _begin_to_flush(descriptor: int, start: int, size: int) -> None:
    """Let the disk begin with what was written last, so that little is left to be waited for.

    Linux writes dirty pages that it is advised to drop, and drops those that are clean.
    """
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, start, size, os.POSIX_FADV_DONTNEED)


def retried(read: Callable[..., T], *given: object) -> T:
    """Read something, once more if that fails: disks and network file systems have hiccups.

    Arguments:
        given: to `read`.

    Raises:
        OSError: if it fails twice.
    """
    try:
        return read(*given)
    except OSError:
        time.sleep(PAUSE)
        return read(*given)


def digest_file(path: Path) -> Written:
    """Size and digest of a file as it is on the disk.

    Raises:
        OSError: if it cannot be read.
    """
    digest, piece = Digest(), memoryview(bytearray(PIECE))
    with open(path, "rb", buffering=0) as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while count := file.readinto(piece):
            digest.update(piece[:count])
    return digest.end()


def fill(descriptor: int, into: memoryview, offset: int) -> None:
    """Read what an open file has from a place on, in several threads where it is much.

    Raises:
        OSError: if it cannot be read, or ends before.
    """

    def read(number: int) -> None:
        start = number * PART
        rest = into[start : start + PART]
        while rest:
            count = retried(_read_at, descriptor, rest, offset + start)
            rest, start = rest[count:], start + count

    in_threads(read, -(-len(into) // PART))


def _read_at(descriptor: int, into: memoryview, offset: int) -> int:
    """Read what an open file has at a place.

    Returns:
        bytes that were read, at least one.

    Raises:
        OSError: if it cannot be read, or ends before.
    """
    if count := os.preadv(descriptor, [into], offset):
        return count
    raise OSError(errno.ENODATA, "the file has become shorter")
