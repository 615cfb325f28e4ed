"""Runs `setpoint` commands as processes that can be killed."""

from __future__ import annotations

import os
from pathlib import Path

from ..support.forks import ENVIRONMENT, SETPOINT, Fork, Forks

KILLING = str(Path(__file__).with_name("killing.py"))


class Commands:
    """Starts commands in forks of one process that has loaded torch already."""

    def __init__(self, forks: Forks) -> None:
        self._forks = forks

    def start(self, folder: Path, *arguments: str, kill: tuple[str, int] | None = None) -> Command:
        """Start a command."""
        output = folder / "output.txt"
        variables = {**os.environ, **ENVIRONMENT, "PYTHONUNBUFFERED": "1"}
        program = [SETPOINT] if kill is None else [KILLING, *map(str, kill)]
        with output.open("wb") as file:
            fork = self._forks.start([*program, *arguments], folder, file, variables)
        return Command(fork, output)

    def run(self, folder: Path, *arguments: str) -> tuple[int, str]:
        """Run a command to its end."""
        command = self.start(folder, *arguments)
        return command.wait(), command.output.read_text()


class Command:
    """One running command."""

    def __init__(self, fork: Fork, output: Path) -> None:
        self.output = output
        self.pid = fork.pid
        self.signal = fork.signal
        self.wait = fork.wait
        self._fork = fork

    @property
    def running(self) -> bool:
        """True until it ends."""
        return self._fork.running
