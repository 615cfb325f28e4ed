"""The names inside a `checkpoints/` directory, written and read in this file only.

step-00000100/              a whole checkpoint
step-00000200.tmp-4711/     being written or being removed by process 4711; never read
step-00000100.old-4711/     whole; process 4711 was replacing it by a new one of the same step
step-00000300.damaged-1/    set aside because it could not be read; never listed, never removed
latest, best                text files with the name of a checkpoint
"""

from __future__ import annotations

import os
import re
from itertools import count
from pathlib import Path
from typing import Literal, NamedTuple

PointerName = Literal["latest", "best"]
"""The two files that name a checkpoint."""

POINTERS: tuple[PointerName, ...] = ("latest", "best")

MANIFEST = "manifest.json"
"""The file that lists a checkpoint's other files; written last."""

STATE = "state.json"
"""The file with everything that is no tensor."""

TENSORS = ".safetensors"
"""The end of the names of files with tensors."""

INDEX = ".index.json"
"""The end of the names of files that say where the parts of tensors lie."""

_STEP = re.compile(r"step-([0-9]{8,})")
_UNFINISHED = re.compile(r"(step-[0-9]{8,}|latest|best)\.(tmp|old)-([0-9]+)")


class Unfinished(NamedTuple):
    """What a save that has not ended, or never will, left in the directory.

    Arguments:
        kind: `tmp` for a file that is not read, `old` for a whole checkpoint that was set aside.
    """

    path: Path
    target: str
    kind: str
    pid: int


def directory_name(step: int) -> str:
    """The name of a checkpoint's directory.

    Returns:
        for instance `step-00000100`.
    """
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step that a directory's name stands for."""
    match = _STEP.fullmatch(name)
    if match is None or directory_name(int(match[1])) != name:
        return None
    return int(match[1])


def temporary(root: Path, name: str, pid: int) -> Path:
    """Where `name` is written before it gets its name, and removed after it lost it."""
    return root / f"{name}.tmp-{pid}"


def aside(root: Path, name: str, pid: int) -> Path:
    """Where a whole checkpoint waits while another one takes its name."""
    return root / f"{name}.old-{pid}"


def damaged(root: Path, name: str) -> Path:
    """Where a checkpoint goes that could not be read: a name that is free."""
    return next(
        path
        for number in count(1)
        if not os.path.lexists(path := root / f"{name}.damaged-{number}")
    )


def unfinished(root: Path) -> list[Unfinished]:
    """Everything in the directory that a save has not finished.

    Arguments:
        root: the directory of the checkpoints; it need not exist.
    """
    found: list[Unfinished] = []
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        match = _UNFINISHED.fullmatch(path.name)
        if match is not None:
            found.append(Unfinished(path, match[1], match[2], int(match[3])))
    return found


def list_checkpoints(root: Path) -> dict[int, Path]:
    """The checkpoints in the directory, whether whole or damaged.

    Arguments:
        root: the directory of the checkpoints; it need not exist.
    """
    found: dict[int, Path] = {}
    for left in unfinished(root):
        step = step_of(left.target)
        # A process that died between the two renames of a replacement left the only copy here.
        if left.kind == "old" and step is not None:
            found[step] = left.path
    for path in root.iterdir() if root.is_dir() else ():
        step = step_of(path.name)
        if step is not None:
            found[step] = path
    return dict(sorted(found.items()))
