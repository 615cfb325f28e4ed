"""What a GPU's memory held and who asked for it, for pytorch.org/memory_viz."""

from __future__ import annotations

from pathlib import Path

import torch

from setpoint.files.atomic import replacing
from setpoint.profile.config import Profiling

ENTRIES = 100_000
"""Events that are kept, the youngest; one takes about a kilobyte with its stack."""


def begin_snapshot(section: Profiling, device: torch.device) -> None:
    """Record from now on who allocates and frees.

    Arguments:
        device: where the model lies; nothing is recorded but on a GPU.
    """
    if section.snapshot and device.type == "cuda":
        torch.cuda.memory._record_memory_history(max_entries=ENTRIES)


def write_snapshot(path: Path) -> Path:
    """Write what has been recorded, whole or not at all.

    Raises:
        OSError: if it cannot be written.
    """
    with replacing(path) as staged:
        torch.cuda.memory._dump_snapshot(str(staged))
    return path


def end_snapshot(section: Profiling, device: torch.device) -> None:
    """Record no longer, and drop what was recorded."""
    if section.snapshot and device.type == "cuda":
        torch.cuda.memory._record_memory_history(enabled=None)
