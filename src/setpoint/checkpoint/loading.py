"""One checkpoint, read back only if every byte is what was saved."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from .durable import retried
from .layout import STATE, TENSORS, step_of
from .manifest import DamagedCheckpoint, read_manifest, unreadable, verify
from .state_file import decode_state
from .tensor_file import read_tensors


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What `CheckpointStore.save` was given, read back.

    Arguments:
        tensors: file stem to name to CPU tensor; tied tensors are one object again.
        metric: what selects the best checkpoint, lower is better; None if it was not measured.
    """

    step: int
    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]
    metric: float | None
    path: Path


def load_directory(directory: Path, only: Collection[str] | None = None) -> Checkpoint:
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
    names = list(manifest.files)
    if only is not None:
        for stem in only:
            if stem not in stems:
                raise KeyError(f"{directory} has no tensors {stem!r}, only {', '.join(stems)}")
        stems = [stem for stem in stems if stem in only]
        names = [STATE, *(stem + TENSORS for stem in stems)]
    verify(directory, manifest, names)
    try:
        state = decode_state(retried(Path.read_bytes, directory / STATE))
    except OSError as error:
        raise unreadable(directory, STATE, error) from error
    tensors: dict[str, dict[str, Tensor]] = {}
    for stem in stems:
        try:
            tensors[stem] = retried(read_tensors, directory / (stem + TENSORS))
        except OSError as error:
            raise unreadable(directory, stem + TENSORS, error) from error
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
