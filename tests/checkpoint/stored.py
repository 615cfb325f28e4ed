"""Checkpoints of a store by step or pointer, as commands find them."""

from collections.abc import Collection
from pathlib import Path

from setpoint.checkpoint.folder import POINTERS, PointerName, list_checkpoints, read_pointer
from setpoint.checkpoint.loading import LoadedCheckpoint, load_directory
from setpoint.config import SetpointError


def load(
    root: Path, which: int | PointerName = "latest", only: Collection[str] | None = None
) -> LoadedCheckpoint:
    """Load a checkpoint after comparing its bytes with the checksums."""
    step = which if isinstance(which, int) else read_pointer(root, which)
    directory = list_checkpoints(root).get(-1 if step is None else step)
    if directory is None:
        raise SetpointError(f"there is no checkpoint {which} in {root}")
    return load_directory(directory, only)


def pointers(root: Path) -> tuple[int | None, ...]:
    """The steps that `latest` and `best` name."""
    return tuple(read_pointer(root, name) for name in POINTERS)
