"""A `checkpoints/` directory: names, pointers, retention, and atomic publication and removal.

File names, defined in this file only:

step-00000100/              a complete checkpoint
step-00000200.tmp-4711/     being written or being removed by process 4711; never read
step-00000100.old-4711/     complete; process 4711 was replacing it with a new one
step-00000300.damaged-1/    set aside: unreadable, or newer than a rollback; not listed
latest, best                text files with the name of a checkpoint
set-aside                   text file of a pending change at the upload URL
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Literal, NamedTuple

from setpoint.config import SetpointError
from setpoint.files.atomic import read_small, retried, sync_directory, write_file
from setpoint.units import Period

from .manifest import DamagedCheckpoint, Manifest, read_manifest

PointerName = Literal["best", "latest"]
"""The two files that name a checkpoint."""

POINTERS: tuple[PointerName, ...] = ("latest", "best")

PENDING = "set-aside"
"""File with the step after which the checkpoints at a URL are obsolete."""

_STEP = re.compile(r"step-([0-9]{8,})")
_DAMAGED = re.compile(r"step-[0-9]{8,}\.damaged-[0-9]+")
_UNFINISHED = re.compile(r"(step-[0-9]{8,}|latest|best|set-aside)\.(tmp|old)-[0-9]+")


class Unfinished(NamedTuple):
    """Leftover of a save that is in progress or was killed.

    Arguments:
        kind: `tmp` for an incomplete file or folder, `old` for a complete checkpoint being
            replaced.
    """

    path: Path
    target: str
    kind: str


def directory_name(step: int) -> str:
    """Name of a checkpoint's directory, such as `step-00000100`."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step in a directory name; None if it is not a checkpoint name."""
    match = _STEP.fullmatch(name)
    if match is None or directory_name(int(match[1])) != name:
        return None
    return int(match[1])


def manifest_of(directory: Path) -> Manifest:
    """Read a checkpoint's manifest, and compare its step with the directory name.

    Raises:
        DamagedCheckpoint: the manifest is for another step; also raises the errors of
            `read_manifest`.
    """
    manifest = read_manifest(directory)
    if step_of(directory.name.partition(".")[0]) not in (None, manifest.step):
        raise DamagedCheckpoint(directory, f"its manifest is for step {manifest.step}")
    return manifest


def temporary(root: Path, name: str) -> Path:
    """Temporary path of this process for writing or removing `name`."""
    return root / f"{name}.tmp-{os.getpid()}"


def damaged(root: Path, name: str) -> Path:
    """Unused path for setting a checkpoint aside."""
    return next(
        path
        for number in count(1)
        if not os.path.lexists(path := root / f"{name}.damaged-{number}")
    )


def set_aside_in(root: Path) -> list[Path]:
    """Checkpoints that were set aside; the directory need not exist."""
    names = sorted(root.iterdir()) if root.is_dir() else ()
    return [path for path in names if _DAMAGED.fullmatch(path.name)]


def unfinished(root: Path) -> list[Unfinished]:
    """Leftovers of saves; the directory need not exist."""
    leftovers: list[Unfinished] = []
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        match = _UNFINISHED.fullmatch(path.name)
        if match is not None:
            leftovers.append(Unfinished(path, match[1], match[2]))
    return leftovers


def list_checkpoints(root: Path) -> dict[int, Path]:
    """Checkpoints by step, valid or damaged; the directory need not exist."""
    checkpoints: dict[int, Path] = {}
    paths = root.iterdir() if root.is_dir() else ()
    # Names with an ending first: a process that died between the two renames of a replacement left
    # the only copy as `.old`.
    for path in sorted(paths, key=lambda path: ("." not in path.name, path.name)):
        old = _UNFINISHED.fullmatch(path.name)
        step = step_of(old[1] if old and old[2] == "old" else path.name)
        if step is not None:
            checkpoints[step] = path
    return dict(sorted(checkpoints.items()))


def publish(staged: Path, target: Path) -> None:
    """Rename a complete, flushed directory to its final name.

    Arguments:
        staged: the directory, with the same parent as `target`.
        target: the final path; an existing directory is replaced. After a crash at any point,
            `list_checkpoints` returns one of the two, complete.
    """
    root = target.parent
    old = root / f"{target.name}.old-{os.getpid()}"
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
    """Remove a checkpoint; a power failure never leaves part of it under its name."""
    doomed = temporary(directory.parent, name)
    if doomed.exists():
        shutil.rmtree(doomed)
    os.rename(directory, doomed)
    sync_directory(directory.parent)
    shutil.rmtree(doomed)


def clear_leftovers(root: Path, own_only: bool = False) -> None:
    """Remove leftovers of former writers, and undo interrupted replacements.

    It does not look for the writers: their process ids may be in use again, above all in containers
    and on other hosts.

    Arguments:
        own_only: leave leftovers of other process ids alone; only a process that certainly has the
            run's lock may remove those.
    """
    for left in unfinished(root):
        if own_only and not left.path.name.endswith(f"-{os.getpid()}"):
            continue
        target = root / left.target
        if left.kind == "old" and not target.exists():
            os.rename(left.path, target)
        elif left.kind == "old":
            # A partial `old` would pass for a complete one if this process died here.
            remove(left.path, left.target)
        elif left.path.is_dir():
            shutil.rmtree(left.path)
        else:
            left.path.unlink()


LONGEST = 4096
"""Maximum size of a pointer file in bytes."""


class UnreadPointer(SetpointError):
    """A pointer file that exists but cannot be read."""


class StagedPointer:
    """New content of a pointer, flushed to a file next to it.

    Once staged, moving the pointer is only a rename, which succeeds even on a full disk.
    """

    def __init__(self, root: Path, name: PointerName, step: int) -> None:
        self.target = root / name
        self.staged = temporary(root, name)
        self.staged.unlink(missing_ok=True)
        try:
            write_file(self.staged, [f"{directory_name(step)}\n".encode()])
        except BaseException:
            self.discard()
            raise

    def move(self) -> None:
        """Replace the pointer durably."""
        os.replace(self.staged, self.target)
        sync_directory(self.target.parent)

    def discard(self) -> None:
        """Remove the staged file if the pointer was not moved.

        If the disk fails, the next session removes the file.
        """
        with suppress(OSError):
            self.staged.unlink()


def read_pointer(root: Path, name: PointerName) -> int | None:
    """The step to which a pointer refers.

    Raises:
        UnreadPointer: the file cannot be read.
        SetpointError: the content is not a checkpoint name.
    """
    path = root / name
    if not os.path.lexists(path):
        return None
    try:
        content = retried(read_small, path, LONGEST)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise SetpointError(f"{path} names no checkpoint: {error.strerror}") from error
        raise UnreadPointer(f"{path} cannot be read: {error.strerror}") from error
    step = step_of(content.decode("utf-8", "replace").removesuffix("\n"))
    if step is None:
        raise SetpointError(
            f"{path} names no checkpoint: it contains {content[:40]!r}, not a name like "
            f"{directory_name(100)}"
        )
    return step


def readable_pointer(root: Path, name: PointerName) -> int | None:
    """Like `read_pointer`, but None for a broken pointer."""
    try:
        return read_pointer(root, name)
    except SetpointError:
        return None


def point(root: Path, name: PointerName, step: int | None) -> None:
    """Point to another checkpoint; None removes the pointer. Raises `OSError`."""
    if step is not None:
        StagedPointer(root, name, step).move()
        return
    (root / name).unlink(missing_ok=True)
    sync_directory(root)


At = Literal["powers_of_two"] | tuple[int, ...] | None
"""Explicit steps: a list, or the powers of two."""


def is_named(steps: At, step: int) -> bool:
    """True if `steps` contains the step."""
    if steps == "powers_of_two":
        return step > 0 and not step & (step - 1)
    return steps is not None and step in steps


@dataclass(frozen=True, slots=True)
class Retention:
    """Retention rule for the checkpoints of a run.

    Arguments:
        keep: number of newest checkpoints to keep, at least 1; None keeps all.
        every: keep the first checkpoint in each interval of this length.
        at: keep the checkpoints of these steps.
    """

    keep: int | None = 2
    every: Period | None = None
    at: At = None

    def reasons(
        self,
        steps: Iterable[int],
        protected: Mapping[int, str],
        distance: Callable[[int, str], float | None] = lambda step, unit: None,
    ) -> dict[int, list[str]]:
        """List the reasons to keep each checkpoint.

        Arguments:
            protected: steps to keep in any case, with the reason; older ones do not count towards
                `keep`.
            distance: position of the run at a step, in another unit of periods; None if unknown.

        Returns:
            step to reasons, oldest first; a checkpoint without reasons may be removed.
        """
        every, known = self.every, sorted(steps)
        if every is not None and every.unit == "never":
            every = None
        newest = set(known if self.keep is None else known[-self.keep :])
        reasons: dict[int, list[str]] = {step: [] for step in known}
        # The first checkpoint of an interval is kept, so removals do not change the selection.
        taken: set[int] = set()
        for step, why in reasons.items():
            if step in protected:
                why.append(protected[step])
            if step in newest:
                why.append("all" if self.keep is None else f"newest {self.keep}")
            if is_named(self.at, step):
                why.append("at")
            if every is None:
                continue
            position = step if every.unit == "steps" else distance(step, every.unit)
            if position is None:
                why.append("position unknown")
            elif (number := every.multiples_in(position)) and number not in taken:
                taken.add(number)
                why.append(f"every {every}")
        return reasons


def protected_by_pointers(root: Path) -> dict[int, str] | None:
    """The steps of the pointers `latest` and `best`.

    Returns:
        step to pointer names; None if a pointer cannot be read, in which case nothing may be
        removed.
    """
    steps: dict[PointerName, int | None] = {}
    for name in POINTERS:
        try:
            steps[name] = read_pointer(root, name)
        except UnreadPointer:
            return None
        except SetpointError:
            continue
    return names_of_steps(steps)


def names_of_steps(steps: Mapping[PointerName, int | None]) -> dict[int, str]:
    """The names of the pointers to each step."""
    names: dict[int, str] = {}
    for name, step in steps.items():
        if step is not None:
            names[step] = f"{names[step]}, {name}" if step in names else name
    return names
