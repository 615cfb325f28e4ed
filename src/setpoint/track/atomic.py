"""Small files that are replaced in one step, so that a reader never sees half of one."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from pathlib import Path
from typing import Any

from setpoint.config import RunError


def write_text(path: Path, text: str) -> None:
    """Write a file, or replace it with its permissions kept, and wait until the disk has it.

    Raises:
        RunError: if it cannot be written, as on a full disk; what was there before is unchanged.
    """
    staged = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    try:
        with open(staged, "w", encoding="utf-8", newline="\n") as file:
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
