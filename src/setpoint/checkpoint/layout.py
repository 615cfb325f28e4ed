"""The names inside a `checkpoints/` directory, written and read in this file only.

step-00000100/              a whole checkpoint
step-00000200.tmp-4711/     being written or being removed by process 4711; never read
step-00000100.old-4711/     whole; process 4711 was replacing it by a new one of the same step
step-00000300.damaged-1/    set aside because it could not be read; never listed, never removed
latest, best                text files with the name of a checkpoint
set-aside                   a text file, while the run is to change a URL that it uploads to
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from itertools import count
from pathlib import Path
from typing import Literal, NamedTuple

PointerName = Literal["latest", "best"]
"""The two files that name a checkpoint."""

POINTERS: tuple[PointerName, ...] = ("latest", "best")

PENDING = "set-aside"
"""The file with the step after which a URL holds checkpoints that are to count no more."""

MANIFEST = "manifest.json"
"""The file that lists a checkpoint's other files; written last."""

STATE = "state.json"
"""The file with everything that is no tensor."""

BASE = "base.json"
"""The file that says which frozen parameters are not there, and which weights have them."""

TENSORS = ".safetensors"
"""The end of the names of files with tensors."""

INDEX = ".index.json"
"""The end of the names of files that say where the parts of tensors lie."""

_STEP = re.compile(r"step-([0-9]{8,})")
_OF_A_RANK = re.compile(r"(.+)-[0-9]{5}-of-([0-9]{5})" + re.escape(TENSORS))
_DAMAGED = re.compile(r"step-[0-9]{8,}\.damaged-[0-9]+")
_UNFINISHED = re.compile(r"(step-[0-9]{8,}|latest|best|set-aside)\.(tmp|old)-([0-9]+)")


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


def set_aside_in(root: Path) -> list[Path]:
    """What `damaged` has given a name to.

    Arguments:
        root: the directory of the checkpoints; it need not exist.
    """
    names = sorted(root.iterdir()) if root.is_dir() else ()
    return [path for path in names if _DAMAGED.fullmatch(path.name)]


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


def file_of_rank(stem: str, rank: int, ranks: int) -> str:
    """The name of the file with a rank's parts."""
    return f"{stem}-{rank + 1:05d}-of-{ranks:05d}{TENSORS}"


def files_of_stems(files: Collection[str]) -> dict[str, list[str]]:
    """The files of a checkpoint that hold tensors, by stem."""
    found: dict[str, list[str]] = {}
    for file in files:
        if file.endswith(INDEX):
            found.setdefault(file.removesuffix(INDEX), []).append(file)
        elif file.endswith(TENSORS):
            match = _OF_A_RANK.fullmatch(file) if is_of_a_rank(file, files) else None
            stem = match[1] if match else file.removesuffix(TENSORS)
            found.setdefault(stem, []).append(file)
    return found


def is_of_a_rank(file: str, files: Collection[str]) -> bool:
    """Whether a file of a checkpoint holds parts of tensors, which an index names."""
    match = _OF_A_RANK.fullmatch(file)
    return match is not None and match[1] + INDEX in files


def ranks_in(files: Collection[str]) -> int:
    """How many ranks wrote a checkpoint in parts; 1 where the tensors are whole."""
    found = (_OF_A_RANK.fullmatch(file) for file in files if is_of_a_rank(file, files))
    return max((int(match[2]) for match in found if match), default=1)
