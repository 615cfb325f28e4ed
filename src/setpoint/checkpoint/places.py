"""Checkpoints found by path, and their metadata, without importing torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from setpoint.config import (
    CONFIG,
    MINIMAL,
    ORIGINS,
    MissingPathError,
    Problem,
    SetpointError,
    did_you_mean,
    nearest,
)
from setpoint.files.atomic import read_json
from setpoint.hub.fetch import is_url, protocol_problem

from .folder import (
    POINTERS,
    PointerName,
    directory_name,
    list_checkpoints,
    manifest_of,
    read_pointer,
    set_aside_in,
    step_of,
    unfinished,
)
from .manifest import (
    BASE,
    MANIFEST,
    DamagedCheckpoint,
    Manifest,
    compare_sizes,
    files_of_stems,
    ranks_in,
    read_manifest,
    verify,
)

if TYPE_CHECKING:
    from .config import Checkpoint

CHECKPOINTS = "checkpoints"
"""The folder of a run with its checkpoints."""

POINT_FILE = "point.json"
"""The file that distinguishes the record of a sweep's point from a run directory."""

RECORD = (CONFIG, ORIGINS, MINIMAL)
"""The text files of a checkpoint's record, as `config.record.record_files` makes them."""


def is_point(folder: str | Path) -> bool:
    """True if a folder is the record of a sweep's point, whose run is elsewhere."""
    return (Path(folder) / POINT_FILE).is_file()


def run_of_point(folder: str | Path) -> Path:
    """The run directory of a point's record."""
    sweep = Path(os.path.normpath(Path(folder, "..", "..")))
    return run_in(sweep, read_json(Path(folder) / POINT_FILE)["run"])


def run_in(sweep: Path, run: str) -> Path:
    """A recorded run directory; the folder of the sweep may have been moved with its contents."""
    moved = sweep / Path(run).name
    return moved if moved.is_dir() else Path(run)


def find_checkpoint(path: Path) -> Path | None:
    """The directory of the checkpoint at a path, found without importing torch.

    Arguments:
        path: a checkpoint, or `latest` or `best` in the checkpoint folder of a run.

    Raises:
        SetpointError: the path names a missing checkpoint in a folder that has others.
    """
    if (path / MANIFEST).is_file():
        return path
    siblings = list_checkpoints(path.parent) if path.name and not path.is_dir() else {}
    if not siblings:
        return None
    step = None
    if path.name in POINTERS:
        step = read_pointer(path.parent, "latest" if path.name == "latest" else "best")
    if step not in siblings:
        names = [directory.name for directory in siblings.values()]
        others = [name for name in (*names, *POINTERS) if name != path.name]
        meant = did_you_mean(path.name, others, ".\n")
        raise SetpointError(
            f"there is no checkpoint {path.name} in {path.parent}, only {', '.join(names)}{meant}"
        )
    return siblings[step]


def checkpoint_to_load(name: str) -> Path:
    """The directory of the checkpoint named by `checkpoint.load`.

    Arguments:
        name: a run, its checkpoint folder or the folder of its point in a sweep, for the latest; or
            a path for `find_checkpoint`.

    Raises:
        SetpointError: there is no checkpoint.
    """
    refuse_url(name)
    path = Path(os.path.expanduser(name))
    checkpoint = find_checkpoint(path)
    if checkpoint is not None:
        return checkpoint
    if not path.is_dir():
        raise MissingPathError(no_directory(path))
    if is_point(path):
        path = run_of_point(path)
    folder = path / CHECKPOINTS if (path / CHECKPOINTS).is_dir() else path
    steps = list_checkpoints(folder)
    if not steps:
        runs = sorted(path.glob(f"*/{CHECKPOINTS}"))
        such = f"; it contains runs, such as {runs[0].parent}" if runs else ""
        raise SetpointError(f"{path} is neither a checkpoint nor a run that has one{such}")
    latest = read_pointer(folder, "latest")
    return steps[max(steps) if latest not in steps else latest]


def split_url(url: str) -> tuple[str, int | PointerName | None]:
    """Split the URL of a run, of its checkpoints, or of one of them.

    Returns:
        the URL of the run, and the named step or pointer; None for the newest.
    """
    run = url.rstrip("/")
    above, _, last = run.rpartition("/")
    selector: int | PointerName | None = step_of(last)
    if last in POINTERS:
        selector = "latest" if last == "latest" else "best"
    if selector is not None:
        run, last = above, above.rpartition("/")[2]
    return run.removesuffix(f"/{CHECKPOINTS}"), selector


def refuse_url(name: str) -> None:
    """Refuse a URL in place of a path.

    Raises:
        SetpointError: the name is a URL.
    """
    if is_url(name):
        raise SetpointError(
            f"{name} is a URL.\nValid: a run or a checkpoint on a disk; checkpoint.load of a new "
            f"run accepts a URL"
        )


def no_directory(path: Path) -> str:
    """Error text for a missing directory, with the one that may have been meant."""
    names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    close = nearest(path.name, names, 1)
    meant = f". Did you mean {path.parent / close[0]}?" if close else ""
    return f"{path}: there is no such directory{meant}"


def load_problems(section: Checkpoint) -> Iterator[Problem]:
    """Check that the checkpoint to load exists, unless it is at a URL."""
    assert section.load is not None
    if is_url(section.load):
        problem, _, valid = protocol_problem(section.load, "remote").partition("\nValid: ")
        if problem:
            yield Problem("load", problem, hint=f"Valid: {valid}")
        return
    try:
        read_manifest(checkpoint_to_load(section.load))
    except SetpointError as error:
        yield Problem.of(error, "load")


def verify_record(directory: Path) -> None:
    """Compare the record in a checkpoint with the checkpoint's manifest.

    Raises:
        DamagedCheckpoint: a file of the record is missing or differs.
        RunError: the record cannot be read.
        SetpointError: the checkpoint has no record, or a newer version of Setpoint wrote it.
    """
    manifest = read_manifest(directory)
    if CONFIG not in manifest.files:
        raise SetpointError(f"{directory} has no record of its configuration")
    verify(directory, manifest, [name for name in RECORD if name in manifest.files])


def newest_whole(root: Path) -> tuple[int, Path] | tuple[None, None]:
    """Find the newest checkpoint with all files at full size, without computing checksums."""
    for step, directory in reversed(list_checkpoints(root).items()):
        with suppress(SetpointError):
            compare_sizes(directory, read_manifest(directory))
            return step, directory
    return None, None


def format_newest(root: Path) -> str:
    """Sentence about the newest complete checkpoint."""
    step, _ = newest_whole(root)
    if step is None:
        return "There is no checkpoint yet"
    return f"The newest checkpoint is {root / directory_name(step)}"


Kind = Literal["checkpoint", "set aside", "unfinished"]


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """A checkpoint, complete or not.

    Arguments:
        kind: `set aside` for one that could not be read, `unfinished` for an incomplete save or
            removal.
        written: the time of its manifest, in seconds since 1970; None without one.
        size: total bytes of its files.
        manifest: None if it cannot be read.
        damage: the damage visible without reading contents: only file sizes are compared.
    """

    path: Path
    kind: Kind
    step: int
    written: float | None
    size: int
    manifest: Manifest | None
    damage: str

    @property
    def ranks(self) -> int | None:
        """Number of ranks that wrote it in parts; 1 if its tensors are whole."""
        return None if self.manifest is None else ranks_in(self.manifest.files)

    @property
    def stems(self) -> list[str]:
        """Names of the files with tensors, such as `model` and `optimizer`."""
        return [] if self.manifest is None else sorted(files_of_stems(self.manifest.files))

    @property
    def leaves_out(self) -> bool:
        """True if the checkpoint omits frozen parameters, which other weights contain."""
        return self.manifest is not None and BASE in self.manifest.files


class FileComparison(NamedTuple):
    """A file of a checkpoint, compared with the manifest.

    Arguments:
        problem: the difference; empty if there is none.
    """

    name: str
    size: int
    problem: str


class CheckpointPlace(NamedTuple):
    """Checkpoints on a disk; `RemotePlace` has the same methods for checkpoints at a URL.

    Arguments:
        root: the folder that contains the checkpoints.
        only: a single checkpoint; None: all.
    """

    root: Path
    only: Path | None = None

    def survey(self) -> list[CheckpointEntry]:
        """List all entries, checkpoints first, by step, without those removed meanwhile."""
        if self.only is not None:
            entries = [_read_entry(self.only, "checkpoint")]
        else:
            checkpoints = list_checkpoints(self.root)
            entries = [_read_entry(path, "checkpoint") for path in checkpoints.values()]
            entries += [_read_entry(path, "set aside") for path in set_aside_in(self.root)]
            entries += [
                _read_entry(left.path, "unfinished")
                for left in unfinished(self.root)
                if left.path not in checkpoints.values() and step_of(left.target) is not None
            ]
        return [entry for entry in entries if entry is not None]

    def pointers(self) -> dict[PointerName, int | str | None]:
        """The step of each pointer, or the reason why the pointer is broken."""
        pointers: dict[PointerName, int | str | None] = {}
        steps = list_checkpoints(self.root)
        for name in POINTERS:
            try:
                step = read_pointer(self.root, name)
            except SetpointError as error:
                pointers[name] = str(error)
                continue
            lost = step is not None and step not in steps
            reason = f"{self.root / name} names step {step}, which does not exist"
            pointers[name] = reason if lost else step
        return pointers

    def compare(self, entry: CheckpointEntry) -> Iterator[FileComparison]:
        """Compare every byte of a checkpoint with its checksums, file by file.

        Raises:
            SetpointError: the manifest cannot be read, or is for another step.
        """
        manifest = manifest_of(entry.path)
        for name, written in sorted(manifest.files.items()):
            try:
                verify(entry.path, manifest, [name])
                problem = ""
            except SetpointError as error:
                problem = reason_of(error)
            yield FileComparison(name, written.size, problem)

    def is_gone(self, entry: CheckpointEntry) -> bool:
        """True if a checkpoint has been removed meanwhile."""
        return not os.path.lexists(entry.path)


def find_place(path: str) -> CheckpointPlace:
    """The checkpoints at a path.

    Arguments:
        path: a run, its checkpoint folder, one checkpoint, which may be damaged, or `latest` or
            `best` in such a folder.

    Raises:
        SetpointError: there are no checkpoints.
    """
    refuse_url(path)
    given = Path(os.path.expanduser(path))
    if given.is_dir():
        names_one = step_of(given.name.partition(".")[0]) is not None
        if names_one or (given / MANIFEST).is_file():
            return CheckpointPlace(given.parent, given)
        if (given / CHECKPOINTS).is_dir():
            return CheckpointPlace(given / CHECKPOINTS)
        if list_checkpoints(given) or set_aside_in(given) or unfinished(given):
            return CheckpointPlace(given)
    elif (checkpoint := find_checkpoint(given)) is not None:
        return CheckpointPlace(checkpoint.parent, checkpoint)
    valid = f"Valid: a run directory, its folder {CHECKPOINTS}, or a checkpoint in it"
    if not os.path.lexists(given):
        raise SetpointError(f"{no_directory(given)}\n{valid}")
    runs = sorted(given.glob(f"*/{CHECKPOINTS}")) if given.is_dir() else []
    such = f", such as {runs[0].parent}" if runs else ""
    raise SetpointError(f"{path} contains no checkpoints.\n{valid}{such}")


def reason_of(error: SetpointError) -> str:
    """The reason given by an error about a checkpoint."""
    return error.reason if isinstance(error, DamagedCheckpoint) else str(error)


def _read_entry(
    path: Path, kind: Literal["checkpoint", "set aside", "unfinished"]
) -> CheckpointEntry | None:
    """Read the manifest and the file sizes; None if the checkpoint was removed meanwhile."""
    manifest, damage = None, ""
    try:
        sizes = {file.name: file.stat().st_size for file in path.iterdir()}
        written = (path / MANIFEST).stat().st_mtime if MANIFEST in sizes else None
    except FileNotFoundError:
        if not path.is_symlink():
            return None
        sizes, written, damage = {}, None, "it is a broken link"
    except OSError as error:
        sizes, written, damage = {}, None, f"it cannot be read: {error.strerror}"
    if not damage and kind != "unfinished":
        try:
            manifest = manifest_of(path)
        except SetpointError as error:
            damage = reason_of(error)
        else:
            damage = manifest.wrong_size(sizes)
    step = step_of(path.name.partition(".")[0])
    if step is None:
        step = -1 if manifest is None else manifest.step
    return CheckpointEntry(path, kind, step, written, sum(sizes.values()), manifest, damage)
