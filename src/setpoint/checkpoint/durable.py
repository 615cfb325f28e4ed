"""Files that are on the disk, not only in its cache, when the call returns."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")
PAUSE = 0.1
"""Seconds before a failed read is tried again."""

CHUNK = 1 << 20
"""Bytes that are read at once."""


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
    digest = hashlib.sha256()
    size = 0
    with open(path, "xb") as file:
        for chunk in chunks:
            file.write(chunk)
            digest.update(chunk)
            size += len(chunk)
        file.flush()
        os.fsync(file.fileno())
    return Written(size, digest.hexdigest())


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
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return Written(file.tell(), digest.hexdigest())


def read_file(path: Path) -> tuple[bytearray, Written]:
    """Read a file that is there once: its content, and size and SHA-256 of that very content.

    Raises:
        OSError: if it cannot be read.
    """
    digest, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        content = bytearray(os.fstat(file.fileno()).st_size)
        rest = memoryview(content)
        while count := file.readinto(rest[:CHUNK]):
            digest.update(rest[:count])
            rest = rest[count:]
            size += count
    return content, Written(size, digest.hexdigest())


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
