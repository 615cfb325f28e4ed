"""Files that are on the disk, not only in its cache, when the call returns."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from .background import in_threads

T = TypeVar("T")
PAUSE = 0.1
"""Seconds before a failed read is tried again."""

CHUNK = 4 << 20
"""Bytes that are written at once."""
PIECE = 256 << 10
"""Bytes that are read at once for their digest alone: what the processor's cache holds."""
PART = 16 << 20
"""Bytes that are worth a thread of their own."""

BLAKE3 = "blake3"
"""Method of digests of what is written: several times as fast as SHA-256, which keeps a good disk
waiting. `b3sum` computes it."""
SHA256 = "sha256"


class Written(NamedTuple):
    """What was written to one file, as the manifest records it.

    Arguments:
        digest: of the content, in hexadecimal digits.
        method: of the digest: `blake3`; in older checkpoints and prepared data `sha256`; and
            `sha256/N`, that of the SHA-256 of each N bytes.
    """

    size: int
    digest: str
    method: str = BLAKE3

    @staticmethod
    def of(content: bytes | memoryview, method: str = BLAKE3) -> Written:
        """Size and digest of bytes in memory."""
        digest = Digest(method)
        digest.update(content)
        return digest.end()

    @property
    def name(self) -> str:
        """What the digest is called."""
        return "BLAKE3" if self.method == BLAKE3 else "SHA-256"

    def difference(self, expected: Written) -> str:
        """In what a file that has this differs from what was expected; empty where it does not."""
        if self.size != expected.size:
            return f"has {self.size} bytes, not {expected.size}"
        if self != expected:
            return f"has the {self.name} {self.digest[:12]}.., not {expected.digest[:12]}.."
        return ""


class _State(Protocol):
    def update(self, data: bytes | memoryview, /) -> object: ...

    def hexdigest(self) -> str: ...


def _state_of(method: str) -> _State:
    if method == BLAKE3:
        # Imported here: the kernel's record has no need of it.
        from blake3 import blake3

        return blake3()
    name, _, chunk = method.partition("/")
    assert name == SHA256
    return _OfChunks(int(chunk)) if chunk else hashlib.sha256()


class _OfChunks:
    """SHA-256 of the SHA-256 of each chunk, as checkpoints of format 5 have it."""

    def __init__(self, chunk: int) -> None:
        self.chunk, self.filled = chunk, 0
        self.whole, self.state = hashlib.sha256(), hashlib.sha256()

    def update(self, data: bytes | memoryview, /) -> None:
        rest = memoryview(data)
        while rest:
            if self.filled == self.chunk:
                self._end_chunk()
            part = rest[: self.chunk - self.filled]
            self.state.update(part)
            self.filled += len(part)
            rest = rest[len(part) :]

    def hexdigest(self) -> str:
        self._end_chunk()
        return self.whole.hexdigest()

    def _end_chunk(self) -> None:
        self.whole.update(self.state.digest())
        self.state, self.filled = hashlib.sha256(), 0


class Digest:
    """Size and digest of a stream.

    Arguments:
        method: see `Written`.
    """

    def __init__(self, method: str = BLAKE3) -> None:
        self.size, self.method = 0, method
        self._state = _state_of(method)

    def update(self, piece: bytes | memoryview) -> None:
        """Take the next bytes."""
        self.size += len(piece)
        self._state.update(piece)

    def end(self) -> Written:
        """Size and digest of what was given."""
        return Written(self.size, self._state.hexdigest(), self.method)


def write_file(path: Path, pieces: Iterable[bytes | memoryview], method: str = BLAKE3) -> Written:
    """Write a new file and wait until the disk has it.

    The digest is taken from memory while writing, so what the disk returns later is compared with
    what was meant and not with what arrived.

    Arguments:
        path: the file; it must not exist.
        pieces: the content in pieces of bytes (a memoryview must have the format `B`).
        method: see `Written`.

    Returns:
        size and digest of the content.

    Raises:
        OSError: if the file cannot be created or the disk is full; a part of it may remain.
    """
    digest = Digest(method)
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


def digest_file(path: Path, method: str = BLAKE3) -> Written:
    """Size and digest of a file as it is on the disk.

    Arguments:
        method: see `Written`.

    Raises:
        OSError: if it cannot be read.
    """
    digest, piece = Digest(method), memoryview(bytearray(PIECE))
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
