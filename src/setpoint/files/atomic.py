"""Files and folders that get their name in one step: a reader never sees half of one."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from setpoint.config import RunError

MOST = 64 << 20
"""Bytes of a file that is read as a whole; what Setpoint writes has a small part of them."""


def not_linked(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file that is added to, as `open` does by its `opener`, unless its name is a link.

    A run directory may come from others, and links in it lead where they like.

    Raises:
        OSError: if it cannot be opened.
    """
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, "it is a link, and a run adds to files of its own") from error


def is_alive(pid: int) -> bool:
    """Whether a process of this host runs, such as the one that a temporary name ends with."""
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

    Raises:
        OSError: if the disk refuses; what was there before is unchanged.
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

    Raises:
        OSError: if the disk refuses; what was there before is unchanged.
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
