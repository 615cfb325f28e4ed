"""Processes for the points of a sweep, several at a time."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import FrameType
from typing import IO, Any

from setpoint.config import RunError
from setpoint.files.atomic import not_linked
from setpoint.report.goodput import FAILED, FINISHED, RUNNING, STOPPED
from setpoint.resilience.signals import INTERRUPTED, NAMES, PREEMPTED, TERMINATED
from setpoint.sweep.sweep_record import SweepTask, write_point

PAUSE = 0.05  # seconds between two polls of the processes
PATIENCE = 3  # number of signals after which to kill
PR_SET_PDEATHSIG = 1  # of Linux's prctl(2)
AGAIN = "--- started again "  # followed by the time, between two attempts in one log
ERROR = "error: "
REPORT = re.compile(r"\d+ problems? in the configuration")
STOPS = (PREEMPTED, INTERRUPTED, TERMINATED, *(-number for number in NAMES))


class Launcher:
    """Starts and monitors processes in a `with` block; none is left running afterwards.

    SIGINT, SIGTERM, SIGUSR1 and SIGHUP are passed on: the points save and end, and no further ones
    are started. The third signal kills the processes.

    Arguments:
        jobs: number of points that run at a time.
        command: makes the command of a point from the point and the modules it needs.
        imports: modules named by the user, which each point imports, too.
    """

    def __init__(
        self,
        jobs: int,
        changed: Callable[[SweepTask], None],
        command: Callable[[SweepTask, Sequence[str]], list[str]] | None = None,
        imports: Sequence[str] = (),
        prefix: str = "SETPOINT__",
    ) -> None:
        self.jobs = jobs
        self._prefix = prefix
        self._changed = changed
        self._command = command or train_command
        self._imports = imports
        self._running: dict[SweepTask, tuple[subprocess.Popen[bytes], float]] = {}
        self._before: dict[int, Any] = {}
        self._signals: list[int] = []
        self._passed = 0

    @property
    def stopped(self) -> int | None:
        """Exit status requested by a signal: 130 for Ctrl-C, 75 for others; None without one."""
        if not self._signals:
            return None
        return INTERRUPTED if self._signals[0] == signal.SIGINT else PREEMPTED

    @property
    def free(self) -> int:
        """The number of points that can be started now."""
        return 0 if self._signals else self.jobs - len(self._running)

    @property
    def busy(self) -> bool:
        """True while a point is running."""
        return bool(self._running)

    def __enter__(self) -> Launcher:
        for number in NAMES:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exc: object) -> None:
        # After an error in Setpoint, the processes are no longer monitored.
        for process, _ in self._running.values():
            _send(process, signal.SIGTERM)
        for process, _ in self._running.values():
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                _send(process, signal.SIGKILL)
                process.wait()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def run(self, tasks: Sequence[SweepTask]) -> None:
        """Run points until all have ended, or a signal requests a stop."""
        waiting = list(tasks)
        while (waiting and not self._signals) or self.busy:
            while waiting and self.free > 0:
                self.start(waiting.pop(0))
            self.wait()

    def start(self, task: SweepTask) -> None:
        """Write a point's record and start its process.

        Raises:
            RunError: the folder cannot be written.
        """
        modules = write_point(task.folder, task.name, task.job, str(task.run))
        command = self._command(task, list(dict.fromkeys([*self._imports, *modules])))
        try:
            log = open(task.log, "ab", opener=not_linked)  # noqa: SIM115 - closed below
        except OSError as error:
            raise RunError(f"{task.log} cannot be written: {error.strerror}") from error
        with log:
            if log.tell():
                log.write(f"{AGAIN}{datetime.now().astimezone():%Y-%m-%d %H:%M:%S %z}\n".encode())
                log.flush()
            process = self._spawn(command, log)
        self._running[task] = process, time.monotonic()
        task.status, task.exit_status, task.reason = RUNNING, None, ""
        self._changed(task)

    def wait(self) -> list[SweepTask]:
        """Wait for a moment, pass signals on, and return the points that have ended."""
        time.sleep(PAUSE)
        while self._passed < len(self._signals):
            number = self._signals[self._passed]
            self._passed += 1
            for process, _ in self._running.values():
                _send(process, signal.SIGKILL if self._passed >= PATIENCE else number)
        ended = [task for task, (process, _) in self._running.items() if process.poll() is not None]
        for task in ended:
            process, since = self._running.pop(task)
            task.seconds = time.monotonic() - since
            self._close(task, process.returncode)
        return ended

    def _close(self, task: SweepTask, status: int) -> None:
        task.exit_status = status
        task.read_metrics()
        if status == 0:
            task.status = FINISHED
        else:
            stopped = bool(self._signals)
            task.status = STOPPED if status in STOPS or stopped else FAILED
            task.reason = reason_of(task, status)
        self._changed(task)

    def _spawn(self, command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        # In its own session, so that Ctrl-C reaches it only through this process, and only once.
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment(os.environ, self.jobs, self._prefix),
            start_new_session=True,
            preexec_fn=_end_with_parent(os.getpid()),
        )

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)


def train_command(task: SweepTask, modules: Sequence[str]) -> list[str]:
    """The command of a point."""
    imports = [word for module in modules for word in ("--import", module)]
    # -P: a file in the working folder must not shadow a module of the standard library.
    start = [sys.executable, "-P", "-m", "setpoint"]
    return [*start, "train", str(task.folder), *imports]


def environment(
    variables: Mapping[str, str], jobs: int, prefix: str = "SETPOINT__"
) -> dict[str, str]:
    """The environment for a point's process; points that run at a time share the processors."""
    passed_on = {k: v for k, v in variables.items() if not k.upper().startswith(prefix)}
    if jobs > 1:
        passed_on.setdefault("OMP_NUM_THREADS", str(max(1, processors() // jobs)))
    return passed_on


def processors() -> int:
    """The number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def reason_of(task: SweepTask, status: int) -> str:
    """The reason why a point ended early, from the end of its log."""
    try:
        with open(task.log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 65536))
            text = file.read().decode("utf-8", "replace")
    except OSError as error:
        return f"exit status {status}; {task.log} cannot be read: {error.strerror}"
    if status in (PREEMPTED, INTERRUPTED):
        return task.saved_text()
    if status < 0:
        names = {number.value: number.name for number in signal.Signals}
        return f"killed by {names.get(-status, f'signal {-status}')}; {task.saved_text()}"
    lines = text.rpartition(AGAIN)[2].splitlines()
    errors = [number for number, line in enumerate(lines) if line.startswith(ERROR)]
    if errors:
        return _of_error(lines[errors[-1] :])
    return next((line.strip() for line in reversed(lines) if line.strip()), f"status {status}")


def _of_error(lines: Sequence[str]) -> str:
    """Format an error as one line, with the first of several problems."""
    head = lines[0].removeprefix(ERROR).strip()
    if not REPORT.match(head):
        return head
    inner = [line for line in lines[1:] if line.startswith("  ")]
    shown_lines = [line.strip() for line in inner[1:] if not line.startswith("    from ")]
    if not shown_lines:
        return head
    more = "" if head.startswith("1 ") else f" ({head})"
    return f"{inner[0].strip()}: {shown_lines[0]}{more}"


def _send(process: subprocess.Popen[bytes], number: int) -> None:
    if process.poll() is None:
        process.send_signal(number)


def _end_with_parent(parent: int) -> Callable[[], None] | None:
    """Function with which a child on Linux receives SIGTERM when its parent dies."""
    if sys.platform != "linux":
        return None
    import ctypes

    library = ctypes.CDLL(None)

    def ask() -> None:
        library.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before the call
            os.kill(os.getpid(), signal.SIGTERM)

    return ask
