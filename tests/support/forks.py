"""Python programs as processes that need not import torch first.

An import of torch takes seconds, and the tests start hundreds of programs. One process imports it
and forks them (`fork_server`); each has the arguments, folder, environment, standard streams and
exit status that it would have as a process of its own.
"""

from __future__ import annotations

import fcntl
import functools
import os
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

# One thread each: the tests share their processors with others.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
# No program of the tests takes as long, but for one that waits for another for ever.
SECONDS = 1800
SETPOINT = str(Path(sys.executable).with_name("setpoint"))
# Of what commands and programs of the tests use; torch.profiler imports more with its first use.
MODULES = ("torch.profiler._cupti_monitor", "numpy.ma", "pytest", "resource", "tomllib")

# Started by a shell in the place of `python` and `setpoint`, and by a sweep for its points. What
# torch starts gets a real process: it inherits more than the three standard streams. It imports
# what Python has imported anyway, and no more: half of its time would go into `json` and `socket`.
# Signals go on to the fork.
STAND_IN = """\
#!{python} -ISE
import _signal, _socket, os, sys
words = sys.argv[1:]
if os.path.basename(sys.argv[0]) == "setpoint":
    words = [{setpoint!r}, *words]
elif "torch" in next((word for word in words if word not in ("-P", "-m")), "torch"):
    os.execv({python!r}, [{python!r}, *words])
request = {{
    "words": words, "folder": os.getcwd(), "environment": dict(os.environ),
    "executable": os.path.join(os.path.dirname(sys.argv[0]), "python"),
}}
server = _socket.socket(_socket.AF_UNIX)
server.connect({address!r})
files = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
text = ascii(request).encode() + b"\\n"
sent = server.sendmsg([text], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
if text[sent:]:  # the fork may have ended, and the socket be closed
    server.sendall(text[sent:])
answers = b""
while b"\\n" not in answers:
    answers += server.recv(1) or sys.exit(70)
fork = int(answers)
def pass_on(number, frame):
    try:
        os.kill(fork, number)
    except ProcessLookupError:
        pass
for number in (_signal.SIGHUP, _signal.SIGINT, _signal.SIGTERM, _signal.SIGUSR2):
    if _signal.getsignal(number) != _signal.SIG_IGN:
        _signal.signal(number, pass_on)
status = int(server.recv(64) or sys.exit(70))
if status < 0:
    if _signal.getsignal(-status) == pass_on:
        _signal.signal(-status, _signal.SIG_DFL)
    os.kill(os.getpid(), -status)
os._exit(status)
"""


class Forks:
    """Starts Python programs as forks of one process, which starts with the first program.

    Arguments:
        folder: that of another process, which shares the process that forks: the workers of
            pytest-xdist use that of their controller. A new one if None.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._own: tempfile.TemporaryDirectory[str] | None = None
        self._server: int | None = None
        if folder is None:
            self._own = tempfile.TemporaryDirectory(prefix="forks-")
            folder = self._own.name
            # The process that forks ends when no process has this open for writing.
            os.mkfifo(f"{folder}/lifeline")
            self._lifeline = os.open(f"{folder}/lifeline", os.O_RDWR)
        self.folder = folder

    @property
    def programs(self) -> str:
        """A folder with the programs `python` and `setpoint`, to be found first in a PATH."""
        assert self.address  # what these programs connect to
        return f"{self.folder}/bin"

    @functools.cached_property
    def address(self) -> str:
        """The socket that the process listens at."""
        path = f"{self.folder}/socket"
        with open(f"{self.folder}/lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.exists(path):
                self._write_programs(path)
                self._start_server(path)
        return path

    def _write_programs(self, address: str) -> None:
        folder = Path(self.folder, "bin")
        folder.mkdir()
        text = STAND_IN.format(python=sys.executable, setpoint=SETPOINT, address=address)
        for name in ("python", "setpoint"):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def _start_server(self, path: str) -> None:
        program = str(Path(__file__).with_name("fork_server.py"))
        lifeline = os.open(f"{self.folder}/lifeline", os.O_RDONLY)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(64)
            listener.set_inheritable(True)
            # Not by `subprocess`, which wants to see the end of what it starts.
            self._server = os.posix_spawn(
                sys.executable,
                [sys.executable, program, str(listener.fileno()), *MODULES],
                {**os.environ, **ENVIRONMENT},
                file_actions=[(os.POSIX_SPAWN_DUP2, lifeline, 0)],
            )
        os.close(lifeline)

    def start(
        self,
        words: Sequence[str],
        folder: Path,
        output: IO[bytes],
        environment: Mapping[str, str] | None = None,
        errors: IO[bytes] | None = None,
    ) -> Fork:
        """Start a program, whose own programs are forks if it starts them by `sys.executable`.

        Arguments:
            words: what would follow `python`.
            folder: the working directory.
            output: an open file for what it prints.
            environment: the variables; those of this process, with one thread, if None.
            errors: an open file for standard error; that of the output if None.
        """
        variables = {**os.environ, **ENVIRONMENT} if environment is None else dict(environment)
        request = {
            "words": list(words),
            "folder": str(folder),
            "environment": variables,
            "executable": f"{self.folder}/bin/python",
        }
        with socket.socket(socket.AF_UNIX) as server, open(os.devnull, "rb") as nothing:
            server.connect(self.address)
            server.settimeout(SECONDS)
            files = [nothing.fileno(), output.fileno(), (errors or output).fileno()]
            socket.send_fds(server, [ascii(request).encode() + b"\n"], files)
            return Fork(server.makefile())

    def run(
        self, words: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        """Run a program to its end: its exit status, and what it printed to either stream."""
        with tempfile.TemporaryFile() as output:
            status = self.start(words, folder, output, environment).wait()
            output.seek(0)
            return status, output.read().decode()

    def close(self) -> None:
        """End the process that forks, and its forks, unless it belongs to another process."""
        if self._own is None:
            return
        os.close(self._lifeline)
        if self._server is not None:
            os.waitpid(self._server, 0)
        self._own.cleanup()


_folder: str | None = None


def share(folder: str) -> None:
    """Use the process that forks of another process."""
    global _folder
    _folder = folder


@functools.cache
def shared() -> Forks:
    """The one that all tests use."""
    return Forks(_folder)


def forked(module: str, *words: str) -> str:
    """Run a module of the tests as a program of its own, such as one of several ranks."""
    root = Path(__file__).resolve().parents[2]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        fork = shared().start(["-m", module, *words], root, output, errors=errors)
        status = fork.wait()
        for file in (output, errors):
            file.seek(0)
        assert status == 0, errors.read().decode()[-4000:]
        return output.read().decode()


def is_running(pid: int) -> bool:
    """Whether a process has not ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


class Fork:
    """One running program."""

    def __init__(self, answers: IO[str]) -> None:
        self._answers = answers
        self.pid = self._next()

    def _next(self) -> int:
        answer = self._answers.readline()
        assert answer, "the process that forks has died"
        return int(answer)

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return is_running(self.pid)

    def signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.running:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self) -> int:
        """Wait for its end; the exit status, negative for a signal."""
        status = self._next()
        self._answers.close()
        return status
