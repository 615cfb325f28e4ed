"""The configuration that a checkpoint was trained with, which lies beside its weights."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from setpoint.config import (
    CONFIG,
    MINIMAL,
    ORIGINS,
    Problem,
    SetpointError,
    did_you_mean,
    nearest,
)
from setpoint.hub.urls import is_url, protocol_problem

from .layout import MANIFEST, POINTERS, list_checkpoints
from .manifest import read_manifest, verify
from .pointers import read_pointer

if TYPE_CHECKING:
    from .config import Checkpoint

CHECKPOINTS = "checkpoints"
"""The folder of a run with its checkpoints."""

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
        names = [directory.name for directory in others.values()]
        meant = did_you_mean(path.name, [*names, *POINTERS], ".\n")
        raise SetpointError(
            f"there is no checkpoint {path.name} in {path.parent}, only {', '.join(names)}{meant}"
        )
    return others[step]


def checkpoint_to_load(name: str) -> Path:
    """The directory of the checkpoint that `checkpoint.load` means.

    Arguments:
        name: a run or the folder of its checkpoints, which mean the latest; or what
            `find_checkpoint` takes.

    Raises:
        SetpointError: there is none.
    """
    refuse_url(name)
    path = Path(os.path.expanduser(name))
    found = find_checkpoint(path)
    if found is not None:
        return found
    if not path.is_dir():
        raise SetpointError(no_directory(path))
    folder = path / CHECKPOINTS if (path / CHECKPOINTS).is_dir() else path
    steps = list_checkpoints(folder)
    if not steps:
        raise SetpointError(f"{path} is neither a checkpoint nor a run that has one")
    latest = read_pointer(folder, "latest")
    return steps[max(steps) if latest not in steps else latest]


def refuse_url(name: str) -> None:
    """Refuse a URL where a path is wanted.

    Raises:
        SetpointError: it is one.
    """
    if is_url(name):
        raise SetpointError(
            f"{name} is a URL.\nValid: a run or a checkpoint on a disk; checkpoint.load of a new "
            f"run takes a URL"
        )


def no_directory(path: Path) -> str:
    """That a directory is not there, and which one may have been meant."""
    there = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
    close = nearest(path.name, there, 1)
    meant = f". Did you mean {path.parent / close[0]}?" if close else ""
    return f"{path}: there is no such directory{meant}"


def load_problems(section: Checkpoint) -> Iterator[Problem]:
    """Check that the checkpoint to load is there; what it holds is compared when it is loaded.

    What is at a URL is looked for then.
    """
    assert section.load is not None
    if is_url(section.load):
        problem, _, valid = protocol_problem(section.load, "remote").partition("\nValid: ")
        if problem:
            yield Problem("load", problem, hint=f"Valid: {valid}")
        return
    try:
        read_manifest(checkpoint_to_load(section.load))
    except SetpointError as error:
        yield Problem("load", str(error))


def verify_record(directory: Path) -> None:
    """Compare the record in a checkpoint with the checkpoint's manifest.

    Raises:
        DamagedCheckpoint: if a file of the record is missing or differs.
        RunError: if it cannot be read.
        SetpointError: if there is none, or a newer Setpoint wrote the checkpoint.
    """
    manifest = read_manifest(directory)
    if CONFIG not in manifest.files:
        raise SetpointError(f"{directory} holds no record of its configuration")
    verify(directory, manifest, [name for name in RECORD if name in manifest.files])
