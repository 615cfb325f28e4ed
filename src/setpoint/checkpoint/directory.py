"""Directories that appear under their name whole, and disappear from it at once."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from setpoint.files.atomic import sync_directory

from .layout import aside, temporary, unfinished


def publish(staged: Path, target: Path) -> None:
    """Give a directory that is complete and on the disk its name.

    Arguments:
        staged: the directory, in the same place as `target`.
        target: its name from now on; an older one of that name is replaced. Whenever the process
            dies, one of the two is found whole (`layout.list_checkpoints`).

    Raises:
        OSError: if a rename fails.
    """
    root = target.parent
    old = aside(root, target.name, os.getpid())
    if target.exists():
        os.rename(target, old)
    try:
        os.rename(staged, target)
    except BaseException:
        if old.exists():
            os.rename(old, target)
        raise
    sync_directory(root)
    if old.exists():
        remove(old, target.name)


def remove(directory: Path, name: str) -> None:
    """Remove a checkpoint so that no half of it is ever found under its name, whenever power fails.

    Raises:
        OSError: if it cannot be removed.
    """
    doomed = temporary(directory.parent, name, os.getpid())
    if doomed.exists():
        shutil.rmtree(doomed)
    os.rename(directory, doomed)
    sync_directory(directory.parent)
    shutil.rmtree(doomed)


def clear_leftovers(root: Path) -> None:
    """Remove what dead processes left, and give a checkpoint that was set aside its name back.

    Only the one process that writes to the directory may call this.

    Raises:
        OSError: if something cannot be removed.
    """
    for left in unfinished(root):
        if left.pid != os.getpid() and _alive(left.pid):
            continue
        target = root / left.target
        if left.kind == "old" and not target.exists():
            os.rename(left.path, target)
        elif left.kind == "old":
            # Half an `old` would be taken for a whole one if this process died here.
            remove(left.path, left.target)
        elif left.path.is_dir():
            shutil.rmtree(left.path)
        else:
            left.path.unlink()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
