"""What lies in a folder of checkpoints, and whether it is as it was saved. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from setpoint.config import SetpointError

from .layout import (
    BASE,
    MANIFEST,
    POINTERS,
    PointerName,
    files_of_stems,
    list_checkpoints,
    ranks_in,
    set_aside_in,
    step_of,
    unfinished,
)
from .manifest import DamagedCheckpoint, Manifest, read_manifest, verify
from .pointers import read_pointer
from .record import CHECKPOINTS, find_checkpoint, no_directory, refuse_url


class Place(NamedTuple):
    """Where checkpoints lie.

    Arguments:
        root: the folder that holds them.
        only: the one that is meant; None for all.
    """

    root: Path
    only: Path | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """One checkpoint, or what is left of one.

    Arguments:
        kind: `set aside` for one that could not be read, `unfinished` for what a save has not
            completed, or a removal.
        written: when its manifest was, in seconds since 1970; None without one.
        size: bytes of all its files.
        manifest: None where it cannot be read.
        damage: what is wrong with it at first sight: lengths of files are compared, not contents.
    """

    path: Path
    kind: Literal["checkpoint", "set aside", "unfinished"]
    step: int
    written: float | None
    size: int
    manifest: Manifest | None
    damage: str

    @property
    def ranks(self) -> int | None:
        """How many ranks wrote it in parts; 1 where its tensors are whole."""
        return None if self.manifest is None else ranks_in(self.manifest.files)

    @property
    def stems(self) -> list[str]:
        """What its tensors are, such as `model` and `optimizer`."""
        return [] if self.manifest is None else sorted(files_of_stems(self.manifest.files))

    @property
    def leaves_out(self) -> bool:
        """Whether it lacks frozen parameters, which other weights have."""
        return self.manifest is not None and BASE in self.manifest.files


class Comparison(NamedTuple):
    """A file of a checkpoint beside what the manifest says.

    Arguments:
        problem: why it is not what was written; empty where it is.
    """

    name: str
    size: int
    problem: str


def find_place(path: str) -> Place:
    """The checkpoints that a path means.

    Arguments:
        path: of a run, of the folder with its checkpoints, or of one checkpoint, which may be
            damaged, or `latest` or `best` in such a folder.

    Raises:
        SetpointError: if there are none.
    """
    refuse_url(path)
    given = Path(os.path.expanduser(path))
    if given.is_dir():
        names_one = step_of(given.name.partition(".")[0]) is not None
        if names_one or (given / MANIFEST).is_file():
            return Place(given.parent, given)
        if (given / CHECKPOINTS).is_dir():
            return Place(given / CHECKPOINTS)
        if list_checkpoints(given) or set_aside_in(given) or unfinished(given):
            return Place(given)
    elif (found := find_checkpoint(given)) is not None:
        return Place(found.parent, found)
    valid = f"Valid: a run directory, its folder {CHECKPOINTS}, or a checkpoint in that"
    if not os.path.lexists(given):
        raise SetpointError(f"{no_directory(given)}\n{valid}")
    runs = sorted(given.glob(f"*/{CHECKPOINTS}")) if given.is_dir() else []
    such = f", such as {runs[0].parent}" if runs else ""
    raise SetpointError(f"{path} holds no checkpoints.\n{valid}{such}")


def survey(place: Place) -> list[Found]:
    """List what lies there, checkpoints first, by step; what goes meanwhile is left out."""
    if place.only is not None:
        found = [_look(place.only, "checkpoint")]
    else:
        whole = list_checkpoints(place.root)
        found = [_look(path, "checkpoint") for path in whole.values()]
        found += [_look(path, "set aside") for path in set_aside_in(place.root)]
        found += [
            _look(left.path, "unfinished")
            for left in unfinished(place.root)
            if left.path not in whole.values() and step_of(left.target) is not None
        ]
    return [each for each in found if each is not None]


def pointers_at(root: Path) -> dict[PointerName, int | str | None]:
    """The step that each pointer names; what is wrong with it where it is broken."""
    found: dict[PointerName, int | str | None] = {}
    steps = list_checkpoints(root)
    for name in POINTERS:
        try:
            step = read_pointer(root, name)
        except SetpointError as error:
            found[name] = str(error)
            continue
        lost = step is not None and step not in steps
        found[name] = f"{root / name} names step {step}, which is not there" if lost else step
    return found


def compare_files(path: Path) -> Iterator[Comparison]:
    """Compare every byte of a checkpoint with its checksums, file by file.

    Raises:
        SetpointError: if its manifest cannot be read, or is that of another step.
    """
    manifest = _own_manifest(path)
    for name, written in sorted(manifest.files.items()):
        try:
            verify(path, manifest, [name])
            problem = ""
        except SetpointError as error:
            problem = reason_of(error)
        yield Comparison(name, written.size, problem)


def _own_manifest(path: Path) -> Manifest:
    manifest = read_manifest(path)
    if step_of(path.name.partition(".")[0]) not in (None, manifest.step):
        raise DamagedCheckpoint(path, f"its manifest is of step {manifest.step}")
    return manifest


def reason_of(error: SetpointError) -> str:
    """What is wrong with a checkpoint, without its name."""
    return error.reason if isinstance(error, DamagedCheckpoint) else str(error)


def _look(path: Path, kind: Literal["checkpoint", "set aside", "unfinished"]) -> Found | None:
    """Read the manifest and the lengths of the files; None where it is gone by now."""
    manifest, damage = None, ""
    try:
        sizes = {each.name: each.stat().st_size for each in path.iterdir()}
        written = (path / MANIFEST).stat().st_mtime if MANIFEST in sizes else None
    except FileNotFoundError:
        if not path.is_symlink():
            return None
        sizes, written, damage = {}, None, "it is a link to what is not there"
    except OSError as error:
        sizes, written, damage = {}, None, f"it cannot be read: {error.strerror}"
    if not damage and kind != "unfinished":
        try:
            manifest = _own_manifest(path)
        except SetpointError as error:
            damage = reason_of(error)
        else:
            damage = wrong_lengths(manifest, sizes)
    step = step_of(path.name.partition(".")[0])
    if step is None:
        step = -1 if manifest is None else manifest.step
    return Found(path, kind, step, written, sum(sizes.values()), manifest, damage)


def wrong_lengths(manifest: Manifest, sizes: Mapping[str, int]) -> str:
    """The first file that is missing or has another length; empty where none does."""
    for name, written in sorted(manifest.files.items()):
        if name not in sizes:
            return f"{name} is missing"
        if sizes[name] != written.size:
            return f"{name} has {sizes[name]} bytes, not {written.size}"
    return ""
