"""The folder that compiled code is kept in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from setpoint.config import Problem, SetpointError

if TYPE_CHECKING:
    from setpoint.compile.config import Compile


def cache_problems(config: Compile) -> Iterator[Problem]:
    """Find that nothing can be kept in the folder of a section."""
    reason = None if config.cache is None else why_unfit(config.cache)
    if reason is not None:
        yield Problem("cache", reason)


def why_unfit(folder: Path) -> str | None:
    """Find why nothing can be kept in a folder.

    Returns:
        the reason in words; None if something can.
    """
    there = folder.absolute()
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    if not there.is_dir():
        return f"{there} is no folder"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{there} cannot be written to: no permission"
    return None


def make_folder(folder: Path) -> None:
    """Make the folder, unless it is there.

    Raises:
        SetpointError: it cannot be made or written to.
    """
    reason = why_unfit(folder)
    if reason is None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:  # it has changed since, or the disk does not take it
            reason = f"it cannot be made: {error.strerror}"
    if reason is not None:
        raise SetpointError(f"compile.cache = {folder}: {reason}")
