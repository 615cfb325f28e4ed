"""What the commands `setpoint runs ...` share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from setpoint.config import SetpointError
from setpoint.runs.labels import Labels, read_labels, write_labels
from setpoint.track.run_directory import is_run_directory


def run_directories(words: list[str]) -> list[Path]:
    """The run directories that a command line names.

    Raises:
        SetpointError: if one is none.
    """
    found = [Path(word) for word in words]
    for path in found:
        if not is_run_directory(path):
            raise SetpointError(
                f"{path} is no run directory: it has no record of a run\nValid: a folder that "
                f"`setpoint train` made; `setpoint runs list` shows them"
            )
    return found


def relabel(paths: list[Path], change: Callable[[Labels], Labels]) -> None:
    """Change what is said of runs; all of them are read before one is written.

    Raises:
        SetpointError: if one cannot be read or written.
    """
    before = [read_labels(path) for path in paths]
    for path, labels in zip(paths, before, strict=True):
        if (now := change(labels)) != labels:
            write_labels(path, now)
