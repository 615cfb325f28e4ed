"""Small files that are replaced in one step, so that a reader never sees half of one."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
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


def write_text(path: Path, text: str) -> None:
    """Write a file, or replace it with its permissions kept, and wait until the disk has it.

    Raises:
        RunError: if it cannot be written, as on a full disk; what was there before is unchanged.
    """
    staged = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    try:
        with open(staged, "w", encoding="utf-8", newline="\n", opener=not_linked) as file:
            file.write(text)
            file.flush()
            if path.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            os.fsync(file.fileno())
        os.replace(staged, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            staged.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise RunError(f"{path} cannot be written: {error.strerror}") from error
        raise


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, as `write_text` does.

    Arguments:
        value: what JSON can hold; NaN and the infinities are refused.

    Raises:
        RunError: if it cannot be written.
        TypeError, ValueError: if JSON cannot hold the value.
    """
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
