"""One checkpoint, read back only if every byte is what was saved."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from setpoint.config import SetpointError
from setpoint.shapes.placed import Named

from .backend import SAFETENSORS, Backend
from .base import Base, read_base
from .divided import look_at
from .layout import BASE, STATE, files_of_stems, step_of
from .manifest import DamagedCheckpoint, Manifest, read_manifest, verify


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What `CheckpointStore.save` was given, read back.

    Arguments:
        tensors: file stem to name to tensor. They are read when they are placed
            (`setpoint.shapes.placed`), from files that have been compared with the manifest.
        metric: what selects the best checkpoint, lower is better; None if it was not measured.
        partial: whether something was left out: what it lacks stays as it is.
        base: the frozen parameters that it does not hold; None where it holds all, or they have
            been put in (`setpoint.model.pretrained.base`).
    """

    step: int
    tensors: dict[str, Named]
    state: dict[str, Any]
    metric: float | None
    path: Path
    partial: bool = False
    base: Base | None = None


class Readers:
    """The processes that read one checkpoint; this is one process alone."""

    def verify(self, directory: Path, manifest: Manifest, names: Collection[str]) -> None:
        """Compare with the manifest what this process is to compare of some files.

        Raises:
            DamagedCheckpoint: see `manifest.verify`.
        """
        verify(directory, manifest, names)

    def agree(self, error: SetpointError | None) -> None:
        """Go on where none of them was refused.

        Arguments:
            error: what this one was refused.

        Raises:
            SetpointError: that; where another one was, what it said.
        """
        if error is not None:
            raise error


ALONE = Readers()


def load_directory(
    directory: Path,
    only: Collection[str] | None = None,
    backend: Backend = SAFETENSORS,
    readers: Readers = ALONE,
) -> Checkpoint:
    """Verify and read a checkpoint.

    Arguments:
        only: the file stems to verify and open, beside the state; None opens all tensors, and
            verifies every file.
        readers: compare together what all of them read.

    Raises:
        DamagedCheckpoint: naming the file that is missing or not what was saved.
        RunError: if a file cannot be read.
        SetpointError: if a newer Setpoint wrote it.
        KeyError: if a stem of `only` was never saved.
    """
    manifest = read_manifest(directory)
    step = step_of(directory.name.partition(".")[0])
    if step not in (None, manifest.step):
        raise DamagedCheckpoint(directory, f"its manifest is of step {manifest.step}")
    files = files_of_stems(manifest.files)
    if only is not None:
        for stem in only:
            if stem not in files:
                raise KeyError(f"{directory} has no tensors {stem!r}, only {', '.join(files)}")
    stems = [stem for stem in files if only is None or stem in only]
    # All before any is read, since what is read goes where the run has its own. The rest is
    # compared as it is read.
    compared = manifest.files if only is None else chain(*(files[stem] for stem in stems))
    names = {*compared} - {STATE, BASE}
    seen = look_at(directory, names)
    readers.verify(directory, manifest, names)
    tensors, state = backend.read(directory, manifest, stems, seen)
    base = read_base(directory, manifest)
    return Checkpoint(
        manifest.step, tensors, state, manifest.metric, directory, partial=False, base=base
    )


def verify_directory(directory: Path) -> float | None:
    """Verify a checkpoint without reading its tensors into memory.

    Raises:
        DamagedCheckpoint: naming the file that is missing or not what was saved.
        RunError: if a file cannot be read.
        SetpointError: if a newer Setpoint wrote it.
    """
    manifest = read_manifest(directory)
    verify(directory, manifest, manifest.files)
    return manifest.metric
