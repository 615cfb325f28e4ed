"""Runs `setpoint` commands as processes that can be killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

# One thread each: the tests share their processors with others.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONUNBUFFERED": "1"}


class Commands:
    """Starts commands in forks of one process that has loaded torch already."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("forking.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **ENVIRONMENT},
        )

    def start(self, folder: Path, *arguments: str) -> Command:
        """Start a command.

        Arguments:
            folder: the working directory.
            arguments: without the word `setpoint`.

        Returns:
            the running process; wait for it before the next is started.
        """
        output = folder / "output.txt"
        output.write_text("")
        self._tell({"arguments": arguments, "folder": str(folder), "output": str(output)})
        return Command(self, int(self._hear()), output)

    def run(self, folder: Path, *arguments: str) -> tuple[int, str]:
        """Run a command to its end.

        Arguments:
            folder: the working directory.
            arguments: without the word `setpoint`.

        Returns:
            the exit status and what it printed.
        """
        command = self.start(folder, *arguments)
        return command.wait(), command.output.read_text()

    def close(self) -> None:
        """End the process that forks."""
        self._server.communicate()

    def _tell(self, request: object) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()

    def _hear(self) -> str:
        assert self._server.stdout is not None
        answer = self._server.stdout.readline()
        assert answer, "the process that forks has died"
        return answer


class Command:
    """One running command.

    Arguments:
        commands: who started it.
        pid: its process.
        output: the file with what it prints.
    """

    def __init__(self, commands: Commands, pid: int, output: Path) -> None:
        self.commands = commands
        self.pid = pid
        self.output = output

    @property
    def running(self) -> bool:
        """Whether it has not ended; one that has, and was not waited for, is a zombie."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except FileNotFoundError:
            return False
        return stat.rpartition(")")[2].split()[0] != "Z"

    def signal(self, number: int) -> None:
        """Send a signal, unless it has ended.

        Arguments:
            number: of the signal.
        """
        if self.running:
            os.kill(self.pid, number)

    def wait(self) -> int:
        """Wait for its end.

        Returns:
            the exit status, negative for a signal.
        """
        return int(self.commands._hear())
