"""The configuration that a checkpoint was trained with, which lies beside its weights."""

from __future__ import annotations

from pathlib import Path

from setpoint.config import CONFIG, MINIMAL, ORIGINS, SetpointError

from .layout import MANIFEST, POINTERS, list_checkpoints
from .manifest import read_manifest, verify
from .pointers import read_pointer

RECORD = (CONFIG, ORIGINS, MINIMAL)
"""The text files of a checkpoint's record, as `config.record.record_files` makes them."""


def find_checkpoint(path: Path) -> Path | None:
    """The directory of the checkpoint that a path means. Imports no torch.

    Arguments:
        path: of a checkpoint, or `latest` or `best` in the folder of a run's checkpoints.

    Raises:
        SetpointError: if it names a checkpoint that is not there, in a folder that has others.
    """
    if (path / MANIFEST).is_file():
        return path
    others = list_checkpoints(path.parent) if path.name and not path.is_dir() else {}
    if not others:
        return None
    step = None
    if path.name in POINTERS:
        step = read_pointer(path.parent, "latest" if path.name == "latest" else "best")
    if step not in others:
        names = ", ".join(directory.name for directory in others.values())
        raise SetpointError(f"there is no checkpoint {path.name} in {path.parent}, only {names}")
    return others[step]


def has_record(directory: Path) -> bool:
    """Whether a checkpoint holds a record of its own, and that it is what was saved.

    Returns:
        False for a checkpoint that was saved before records were part of them.

    Raises:
        DamagedCheckpoint: if a file of the record is missing or differs.
        RunError: if it cannot be read.
        SetpointError: if a newer Setpoint wrote it.
    """
    manifest = read_manifest(directory)
    names = [name for name in RECORD if name in manifest.files]
    verify(directory, manifest, names)
    return CONFIG in names
