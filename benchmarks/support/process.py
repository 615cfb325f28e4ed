"""The CPU time of whole processes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path


def clean_environment(bytecode: Path) -> dict[str, str]:
    """The environment of a measured process.

    Arguments:
        bytecode: where Python keeps compiled modules, so that the second start of every
            contestant finds them, whatever the folders of their sources allow.

    Returns:
        today's environment without what changes how Python or Setpoint start.
    """
    unwanted = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONOPTIMIZE")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in unwanted and not name.startswith("SETPOINT__")
    }
    return {**kept, "PYTHONPYCACHEPREFIX": str(bytecode)}


def cpu_milliseconds(command: Sequence[str], environment: Mapping[str, str], cwd: Path) -> float:
    """Start a process, wait for it, and take its CPU time; its output is dropped.

    Arguments:
        command: the program's path and its arguments.
        environment: its whole environment.
        cwd: its working folder.

    Returns:
        user and system time, in milliseconds.

    Raises:
        RuntimeError: if it fails.
    """
    null = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in (0, 1, 2)]
    # A child starts in the folder of its parent; there is no other way to say it here.
    before = Path.cwd()
    os.chdir(cwd)
    try:
        child = os.posix_spawn(command[0], list(command), environment, file_actions=null)
    finally:
        os.chdir(before)
    _, status, usage = os.wait4(child, 0)
    if status != 0:
        raise RuntimeError(f"{' '.join(command)} failed with wait status {status}")
    return (usage.ru_utime + usage.ru_stime) * 1000
