"""One checkpoint, read back only if every byte is what was saved."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from .backend import SAFETENSORS, Backend
from .layout import STATE, TENSORS, step_of
from .manifest import DamagedCheckpoint, read_manifest, verify


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What `CheckpointStore.save` was given, read back.

    Arguments:
        tensors: file stem to name to CPU tensor; tied tensors are one object again. They are views
            of what was read: copy them into what exists.
        metric: what selects the best checkpoint, lower is better; None if it was not measured.
    """

    step: int
    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]
    metric: float | None
    path: Path


def load_directory(
    directory: Path, only: Collection[str] | None = None, backend: Backend = SAFETENSORS
) -> Checkpoint:
    """Verify and read a checkpoint.

    Arguments:
        only: the file stems to verify and read, beside the state; None reads all tensors, and
            verifies every file.

    Raises:
        DamagedCheckpoint: naming the file that is missing or not what was saved.
        RunError: if a file cannot be read.
        SetpointError: if a newer Setpoint wrote it.
        KeyError: if a stem of `only` was never saved.
    """
    manifest = read_manifest(directory)
    name = directory.name.partition(".")[0]
    if step_of(name) != manifest.step:
        raise DamagedCheckpoint(directory, f"its manifest is of step {manifest.step}")
    stems = [n.removesuffix(TENSORS) for n in manifest.files if n.endswith(TENSORS)]
    if only is None:
        states = {STATE, *(stem + TENSORS for stem in stems)}
        verify(directory, manifest, manifest.files.keys() - states)
    else:
        for stem in only:
            if stem not in stems:
                raise KeyError(f"{directory} has no tensors {stem!r}, only {', '.join(stems)}")
        stems = [stem for stem in stems if stem in only]
    tensors, state = backend.read(directory, manifest, stems)
    return Checkpoint(manifest.step, tensors, state, manifest.metric, directory)


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
