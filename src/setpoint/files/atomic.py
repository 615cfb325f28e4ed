"""Atomic, flushed writes of files with digests, and reads with one retry."""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from setpoint.config import RunError

from .threads import in_threads

T = TypeVar("T")
PAUSE = 0.1
"""Seconds before a failed read is tried again."""

CHUNK = 4 << 20
"""Bytes that are written at once."""
PIECE = 256 << 10
"""Bytes per read when only computing a digest, which fit the processor's cache."""
PART = 16 << 20
"""Minimum bytes per reading thread."""

MOST = 64 << 20
"""Maximum size of a file to read whole; Setpoint's own are much smaller."""


def not_linked(path: str | os.PathLike[str], flags: int) -> int:
    """`opener` for `open` that refuses symbolic links, for appending to files.

    A run directory may come from another user, with links to any path.
    """
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(
            errno.ELOOP, "it is a link, but a run appends only to its own files"
        ) from error


def read_small(path: Path, most: int = MOST) -> bytes:
    """Read a small file from an untrusted source.

    Raises:
        OSError: the file cannot be read; `EINVAL` if it is not a regular file but, for example, a
            pipe, which would block; `EFBIG` if it has more than `most` bytes.
    """
    facts = os.stat(path)
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    if facts.st_size > most:
        raise OSError(errno.EFBIG, f"it has {facts.st_size} bytes, more than {most}")
    return path.read_bytes()


def read_json(path: Path) -> Any:
    """Read a small JSON file from an untrusted source.

    Raises:
        OSError: as raised by `read_small`.
        ValueError: the file is not JSON, or nested too deeply.
    """
    try:
        return json.loads(read_small(path))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


@contextmanager
def replacing(path: Path, sync: bool = False) -> Iterator[Path]:
    """Write a temporary file that replaces `path` if the block succeeds.

    Arguments:
        sync: also flush the directory; the block flushes the content.

    Returns:
        a context with the path to write to, which does not exist.
    """
    staged = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    staged.unlink(missing_ok=True)
    try:
        yield staged
        os.replace(staged, path)
    except BaseException:
        with suppress(OSError):
            staged.unlink(missing_ok=True)
        raise
    if sync:
        sync_directory(path.parent)


@contextmanager
def publishing(target: Path, replace: bool = False) -> Iterator[Path]:
    """Fill a temporary folder that is renamed to `target` if the block succeeds.

    Arguments:
        replace: whether to replace an existing folder; otherwise it must be empty.

    Returns:
        a context with the empty folder to fill.
    """
    import shutil  # not needed by fast commands

    aside, old = (target.with_name(f".{target.name}.{end}-{os.getpid()}") for end in ("tmp", "old"))
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        yield aside
        sync_directory(aside)
        if replace and target.is_dir():
            os.rename(target, old)
        os.rename(aside, target)
        sync_directory(target.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if old.is_dir() and not target.exists():
            os.rename(old, target)
        shutil.rmtree(old, ignore_errors=True)


def sync_directory(path: Path) -> None:
    """Flush the entries of a directory: new, renamed and removed names."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a directory and raise this; they order names
        # themselves.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write and flush a file atomically, keeping the permissions of an existing one.

    Raises:
        RunError: the file cannot be written, as on a full disk; its previous content is unchanged.
    """
    try:
        with (
            replacing(path) as staged,
            open(staged, "w", encoding="utf-8", newline="\n", opener=not_linked) as file,
        ):
            file.write(text)
            file.flush()
            if path.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            os.fsync(file.fileno())
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}") from error


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, like `write_text`.

    Arguments:
        value: JSON data; NaN and the infinities are refused.

    Raises:
        RunError: the file cannot be written.
        TypeError, ValueError: the value is not JSON data.
    """
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


class Written(NamedTuple):
    """Size and digest of a file, as manifests record them.

    Arguments:
        digest: BLAKE3 of the content in hexadecimal digits, as printed by `b3sum`; several times
            faster than SHA-256, which would slow down a fast disk.
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
        """Describe the difference from what was expected; empty if there is none."""
        if self.size != expected.size:
            return f"has {self.size} bytes, not {expected.size}"
        if self != expected:
            return f"has the BLAKE3 {self.digest[:12]}.., not {expected.digest[:12]}.."
        return ""


class Digest:
    """Size and digest of a stream."""

    def __init__(self) -> None:
        from blake3 import blake3  # not needed by commands that read no digest

        self.size, self._state = 0, blake3()

    def update(self, piece: bytes | memoryview) -> None:
        """Add the next bytes."""
        self.size += len(piece)
        self._state.update(piece)

    def end(self) -> Written:
        """Size and digest of all bytes."""
        return Written(self.size, self._state.hexdigest())


def write_file(path: Path, pieces: Iterable[bytes | memoryview]) -> Written:
    """Write and flush a new file.

    The digest is computed from memory while writing, so that it can verify what the disk returns
    later.

    Arguments:
        path: the file; it must not exist.
        pieces: the content in pieces of bytes (a memoryview must have the format `B`).

    Returns:
        size and digest of the content.
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
    """Start writing back a range early, so that the final flush is short.

    Linux writes back dirty pages that it is advised to drop, and drops clean ones.
    """
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, start, size, os.POSIX_FADV_DONTNEED)


def retried(read: Callable[..., T], *given: object) -> T:
    """Call a reading function, and repeat it once after an `OSError`, which may be transient.

    Arguments:
        given: arguments of `read`.
    """
    try:
        return read(*given)
    except OSError:
        time.sleep(PAUSE)
        return read(*given)


def digest_file(path: Path) -> Written:
    """Size and digest of a file on disk."""
    digest, piece = Digest(), memoryview(bytearray(PIECE))
    with open(path, "rb", buffering=0) as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while count := file.readinto(piece):
            digest.update(piece[:count])
    return digest.end()


def fill(descriptor: int, into: memoryview, offset: int) -> None:
    """Fill a buffer from an open file at an offset, in parallel if it is large."""

    def read(number: int) -> None:
        start = number * PART
        remaining = into[start : start + PART]
        while remaining:
            count = retried(_read_at, descriptor, remaining, offset + start)
            remaining, start = remaining[count:], start + count

    in_threads(read, -(-len(into) // PART))


def _read_at(descriptor: int, into: memoryview, offset: int) -> int:
    """Read from an open file at an offset.

    Returns:
        number of bytes read, at least one.
    """
    if count := os.preadv(descriptor, [into], offset):
        return count
    raise OSError(errno.ENODATA, "the file was truncated")


def complete_lines(file: BinaryIO, most: int = MOST) -> Iterator[bytes | None]:
    """The complete lines from the position of a file; None for each longer one than `most`."""
    while line := file.readline(most):
        if line.endswith(b"\n"):
            yield line
        elif len(line) < most:
            return  # being written
        else:
            while line and not line.endswith(b"\n"):
                line = file.readline(most)
            yield None


def row_of(line: bytes | None) -> dict[str, Any] | None:
    """The row in a line; None if it is damaged."""
    try:
        row = None if line is None else json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
