"""Files that are written atomically and flushed, with digests; reads with a retry."""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from setpoint.config import RunError

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

MOST = 64 << 20
"""Bytes of a file that is read as a whole; what Setpoint writes has a small part of them."""


def not_linked(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file that is added to, as `open` does by its `opener`, unless its name is a link.

    A run directory may come from others, and links in it lead where they like.
    """
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, "it is a link, and a run adds to files of its own") from error


def is_alive(pid: int) -> bool:
    """True if a process of this host runs, such as the one that a temporary name ends with."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def read_json(path: Path) -> Any:
    """Read a small file of JSON, whoever wrote it.

    Raises:
        OSError: if it cannot be read, or has more than `MOST` bytes.
        ValueError: if it is not JSON, or nested too deeply.
    """
    if os.path.getsize(path) > MOST:
        raise OSError(errno.EFBIG, f"it has more than {MOST >> 20} MiB")
    try:
        return json.loads(path.read_bytes())
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


@contextmanager
def replacing(path: Path, sync: bool = False) -> Iterator[Path]:
    """Write a file beside another, which it replaces when the block ends without an error.

    Arguments:
        sync: wait until the disk has the name, too; the block has its content flushed.

    Returns:
        a context with the path to write to, where nothing is.
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
    """Fill a folder beside its place, where it appears when the block ends without an error.

    Arguments:
        replace: whether a folder that is there is removed; else it must be empty.

    Returns:
        a context with the empty folder to fill.
    """
    import shutil  # which fast commands do without

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
    """Wait until the names in a directory (new, renamed, removed) are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a directory and say so; they order names themselves.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write a file, or replace it with its permissions kept, and wait until the disk has it.

    Raises:
        RunError: if it cannot be written, as on a full disk; what was there before is unchanged.
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
    """Write a value as indented JSON, as `write_text` does.

    Arguments:
        value: what JSON can hold; NaN and the infinities are refused.

    Raises:
        RunError: if it cannot be written.
        TypeError, ValueError: if JSON cannot hold the value.
    """
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


class Written(NamedTuple):
    """Size and digest of a file, as manifests record them.

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
    """
    try:
        return read(*given)
    except OSError:
        time.sleep(PAUSE)
        return read(*given)


def digest_file(path: Path) -> Written:
    """Size and digest of a file as it is on the disk."""
    digest, piece = Digest(), memoryview(bytearray(PIECE))
    with open(path, "rb", buffering=0) as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while count := file.readinto(piece):
            digest.update(piece[:count])
    return digest.end()


def fill(descriptor: int, into: memoryview, offset: int) -> None:
    """Read what an open file has from a place on, in several threads where it is much."""

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
    """
    if count := os.preadv(descriptor, [into], offset):
        return count
    raise OSError(errno.ENODATA, "the file has become shorter")
