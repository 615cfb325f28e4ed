"""Files that are on the disk, not only in its cache, when the call returns."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import NamedTuple, Self, TypeVar

from . import background
from .background import in_threads

T = TypeVar("T")
PAUSE = 0.1
"""Seconds before a failed read is tried again."""

CHUNK = 4 << 20
"""Bytes that are read, written and taken into the digest at once."""
PIECE = 1 << 20
"""Bytes of a chunk that are read before they are taken into its digest: what the processor's cache
still holds then."""
AHEAD = 2
"""Chunks that the disk may be ahead of the digest, or the digest of the disk."""


class Written(NamedTuple):
    """What was written to one file, as the manifest records it.

    Arguments:
        sha256: in hexadecimal digits: of the whole content; of a file in chunks, of the SHA-256 of
            each chunk, 32 bytes each, one after the other.
        chunk: bytes of each chunk but the last, fewer than the file has; None: the whole content.
    """

    size: int
    sha256: str
    chunk: int | None = None

    @classmethod
    def of(cls, content: bytes) -> Written:
        """Size and SHA-256 of bytes in memory."""
        return cls(len(content), hashlib.sha256(content).hexdigest())

    def difference(self, expected: Written) -> str:
        """In what a file that has this differs from what was expected; empty where it does not."""
        if self.size != expected.size:
            return f"has {self.size} bytes, not {expected.size}"
        if self != expected:
            return f"has the SHA-256 {self.sha256[:12]}.., not {expected.sha256[:12]}.."
        return ""


class Digest:
    """SHA-256 of a stream, which threads compute while the disk or a network reads or writes.

    These leave the interpreter lock to others. Streams of one chunk have no threads, and those
    whose content is one piece to the digest have one; `with` ends them.

    Arguments:
        chunk: see `Written`, for streams that turn out to be longer; None: the whole content.
    """

    def __init__(self, chunk: int | None = None) -> None:
        self.size, self.chunk = 0, chunk
        self._whole = hashlib.sha256()
        self._chunks: dict[int, bytes] = {}
        self._held: list[bytes | memoryview] = []
        self._filled = self._given = 0
        self._tasks: Queue[tuple[int, list[bytes | memoryview]] | None] = Queue(AHEAD)
        self._threads: list[Thread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._join()

    def update(self, piece: bytes | memoryview) -> None:
        """Take the next bytes, which must not change before the end."""
        self.size += len(piece)
        rest, most = memoryview(piece), self.chunk or CHUNK
        while rest:
            # Only now is it known that what is held is not the end of a stream of one chunk.
            if self._filled == most:
                self._give()
            part = rest[: most - self._filled]
            self._held.append(part)
            self._filled += len(part)
            rest = rest[len(part) :]

    def end(self) -> Written:
        """Size and digest of what was given."""
        if self._threads:
            self._give()
            self._join()
        for part in self._held:
            self._whole.update(part)
        for number in range(len(self._chunks)):
            self._whole.update(self._chunks[number])
        return Written(self.size, self._whole.hexdigest(), self.chunk if self._chunks else None)

    def _give(self) -> None:
        if not self._threads:
            for _ in range(1 if self.chunk is None else background.THREADS):
                self._threads.append(Thread(target=self._run, name="setpoint-digest", daemon=True))
                self._threads[-1].start()
        self._tasks.put((self._given, self._held))
        self._held, self._filled, self._given = [], 0, self._given + 1

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            number, pieces = task
            state = self._whole if self.chunk is None else hashlib.sha256()
            for piece in pieces:
                state.update(piece)
            if self.chunk is not None:
                self._chunks[number] = state.digest()
            del task, pieces

    def _join(self) -> None:
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()


def write_file(
    path: Path, pieces: Iterable[bytes | memoryview], chunk: int | None = None
) -> Written:
    """Write a new file and wait until the disk has it.

    The digest is taken from memory while writing, so what the disk returns later is compared with
    what was meant and not with what arrived.

    Arguments:
        path: the file; it must not exist.
        pieces: the content in pieces of bytes (a memoryview must have the format `B`).
        chunk: see `Digest`.

    Returns:
        size and SHA-256 of the content.

    Raises:
        OSError: if the file cannot be created or the disk is full; a part of it may remain.
    """
    with Digest(chunk) as digest, open(path, "xb") as file:
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


def digest_file(path: Path, chunk: int | None = None) -> Written:
    """Size and SHA-256 of a file as it is on the disk.

    Arguments:
        chunk: see `Digest`.

    Raises:
        OSError: if it cannot be read.
    """
    with Digest() as digest, open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if chunk is not None and size > chunk:
            return _digest_chunks(file.fileno(), size, chunk, None)
        while part := file.read(CHUNK):
            digest.update(part)
        return digest.end()


def read_file(path: Path, chunk: int | None = None) -> tuple[memoryview, Written]:
    """Read a file that is there once: its content, and size and SHA-256 of that very content.

    Arguments:
        chunk: see `Digest`.

    Returns:
        memory of its own, not a view of the file, and what was read.

    Raises:
        OSError: if it cannot be read.
    """
    with Digest() as digest, open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        rest = content = _memory(size)
        if chunk is not None and size > chunk:
            return content, _digest_chunks(file.fileno(), size, chunk, content)
        while count := file.readinto(rest[:CHUNK]):
            digest.update(rest[:count])
            rest = rest[count:]
        return content, digest.end()


def _memory(size: int) -> memoryview:
    """Memory of this process alone, in pages as large as the system has: fewer faults."""
    memory = mmap.mmap(-1, max(size, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)[:size]


def _digest_chunks(descriptor: int, size: int, chunk: int, into: memoryview | None) -> Written:
    """Read the chunks of a file in several threads, and take them into its digest as they come.

    Arguments:
        into: memory for the content; None: it is not kept.
    """
    digests = [b""] * -(-size // chunk)

    def read(number: int) -> None:
        start, end = number * chunk, min(number * chunk + chunk, size)
        state, own = hashlib.sha256(), memoryview(bytearray(PIECE if into is None else 0))
        while start < end:
            most = min(PIECE, end - start)
            place = own[:most] if into is None else into[start : start + most]
            count = read_at(descriptor, place, start)
            state.update(place[:count])
            start += count
        digests[number] = state.digest()

    in_threads(read, len(digests))
    return Written(size, hashlib.sha256(b"".join(digests)).hexdigest(), chunk)


def read_at(descriptor: int, into: memoryview, offset: int) -> int:
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
