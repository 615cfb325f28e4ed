"""What a stop leaves of a run: the newest whole checkpoint, and what to type."""

from __future__ import annotations

from pathlib import Path

from setpoint.checkpoint.layout import directory_name, list_checkpoints
from setpoint.checkpoint.manifest import read_manifest
from setpoint.config import SetpointError


def newest_whole(root: Path) -> int | None:
    """Find the newest checkpoint whose files are there in full length; no checksum is computed.

    Returns:
        its step; None if there is none.
    """
    for step, directory in reversed(list_checkpoints(root).items()):
        try:
            files = read_manifest(directory).files
            if all((directory / name).stat().st_size == each.size for name, each in files.items()):
                return step
        except (SetpointError, OSError):
            continue
    return None


def format_newest(root: Path) -> str:
    """Name the newest whole checkpoint, for those who leave in a hurry."""
    step = newest_whole(root)
    if step is None:
        return "There is no checkpoint yet"
    return f"The newest checkpoint is {root / directory_name(step)}"


def outlook(root: Path, since: int | None = None) -> str:
    """Say what a stop means where everything that was trained is saved.

    Arguments:
        since: the step at which this session went on; None before it has.
    """
    step = newest_whole(root)
    if step is None:
        return "nothing was trained; the same command starts again"
    if since is None or step <= since:
        return f"nothing was trained; the same command resumes at step {step}"
    return f"saved at step {step}; the same command resumes there"
