"""The states that are saved, and what the three benchmarks of checkpoints have in common."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness import options
from setpoint.checkpoint.loading import LoadedCheckpoint, put_all

MEGABYTE = 1_000_000
WIDTH = 1024
"""Columns of each matrix."""
LAYERS = 24


def arguments_of(doc: str | None, given: list[str] | None) -> Any:
    """The options of all three; with `--free` no bound is missed."""
    folder = Path(tempfile.gettempdir())
    return options(doc, given, megabytes=[50, 500, 2000], rounds=5, folder=folder, free=False)


def states_of(megabytes: float) -> dict[str, dict[str, Tensor]]:
    """Weights in fp32 and the two moments of Adam: a third of the bytes each."""
    rows = max(round(megabytes * MEGABYTE / 3 / LAYERS / WIDTH / 4), 1)
    generator = torch.Generator().manual_seed(0)

    def tensors(prefix: str) -> dict[str, Tensor]:
        return {
            f"{prefix}.{layer}": torch.randn(rows, WIDTH, generator=generator)
            for layer in range(LAYERS)
        }

    return {"model": tensors("w"), "optimizer": {**tensors("m"), **tensors("v")}}


def joined(states: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
    """All of them under one name each."""
    return {
        f"{stem}.{name}": each for stem, named in states.items() for name, each in named.items()
    }


def put_into(states: dict[str, dict[str, Tensor]], found: LoadedCheckpoint) -> None:
    """Read a checkpoint into tensors that are in memory."""
    put_all(
        [
            (into, found.tensors[stem][name])
            for stem, named in states.items()
            for name, into in named.items()
        ]
    )


def bytes_of(states: dict[str, dict[str, Tensor]]) -> int:
    """What they take in memory."""
    return sum(each.nbytes for each in joined(states).values())


def forget(folder: Path) -> None:
    """Let the next read of files below a folder come from the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def size_on_disk(folder: Path) -> int:
    """Bytes of the files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
