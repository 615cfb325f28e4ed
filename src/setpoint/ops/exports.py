"""Exports of checkpoints as Hugging Face models, while a run trains."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections import deque
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from setpoint.checkpoint.folder import directory_name, list_checkpoints
from setpoint.config import RunError
from setpoint.parallel.world import RemoteRankError
from setpoint.train.loop import Callback, Phase

if TYPE_CHECKING:
    from setpoint.checkpoint.config import Export
    from setpoint.train.loop import Loop
    from setpoint.train.session import Run
    from setpoint.train.verdict import StepResult

FOLDER = "exports"
"""Folder of exports in a run directory."""
POLL_SECONDS = 5.0
"""Maximum wait for a process between two polls, during which other ranks wait."""
OF_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
            "MASTER_PORT")  # fmt: skip
"""Variables that mark a process as a rank."""


@dataclass(slots=True)
class ExportProcess:
    """A running or queued export.

    Arguments:
        source: folder of hard links to the files of the checkpoint, which itself may be removed
            meanwhile.
        error: reason why it cannot start; empty if it can.
    """

    source: Path
    target: Path
    began: float = 0.0
    process: subprocess.Popen[bytes] | None = None
    error: str = ""

    @property
    def log(self) -> Path:
        """Output of the process."""
        return self.source.with_suffix(".log")

    def clear(self) -> None:
        """Remove the export's links and log."""
        shutil.rmtree(self.source, ignore_errors=True)
        self.log.unlink(missing_ok=True)


class ExportCallback(Callback):
    """Exports each checkpoint, or only the last one, during training, one at a time.

    The main rank runs `setpoint export` in a separate process, which reads the checkpoint from
    disk, and renames the directory when it is complete.

    Arguments:
        config: the section.
    """

    phase = Phase.KEEP

    run: Run
    """The opened run."""

    def __init__(self, config: Export) -> None:
        self.config = config
        self.tasks: deque[ExportProcess] = deque()
        self.failed: list[str] = []
        self.closed = False
        # Checkpoints written in the background are added by the thread that writes them.
        self._adding = Lock()

    def opened(self, run: Run, stack: ExitStack) -> None:
        """Remove leftovers of earlier sessions, and export each checkpoint if configured."""
        self.run, self.folder = run, run.directory / FOLDER
        if not run.world.is_main:
            return
        for leftover in self.folder.glob(".*"):
            shutil.rmtree(leftover, ignore_errors=True)
            with suppress(OSError):
                leftover.unlink()
        if self.config.when == "each_save":
            run.store.committed.append(lambda step, path: self.add(path))

    def start(self, loop: Loop) -> None:
        """With `each_save`, export the checkpoint of the current step if its export is missing."""
        newest = max(list_checkpoints(self.run.store.root).items(), default=None)
        is_current = newest is not None and newest[0] == loop.position.step
        if newest is not None and is_current and self.config.when == "each_save":
            self.add(newest[1])

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Report finished exports."""
        self.poll()

    def finish(self, loop: Loop) -> None:
        """Export the last checkpoint of a finished run, and wait for all exports.

        Raises:
            RunError: an export failed; repeating the command retries it.
        """
        if not self.run.world.on_main(lambda: loop.is_over):
            return
        self.add(self.run.store.root / directory_name(loop.position.step))
        is_noted = False
        while not self.run.world.on_main(self.waited):
            if not is_noted and self.tasks:
                self.run.progress.note(f"waiting for the export of {self.tasks[0].target.name}")
            is_noted = True
        errors = self.run.world.on_main(lambda: "; ".join(dict.fromkeys(self.failed)))
        if errors and not self.run.world.is_main:
            raise RemoteRankError(errors, RunError.status)
        if errors:
            raise RunError(errors)

    def close(self, loop: Loop) -> None:
        """Stop unfinished exports, which the next session will repeat."""
        with self._adding:  # a background save may still end after this
            self.closed = True
        for task in self.tasks:
            if task.process is not None:
                task.process.kill()
                task.process.wait()
            task.clear()
        self.tasks.clear()

    def add(self, path: Path) -> None:
        """Queue the export of a checkpoint, unless it exists already.

        Errors are reported by `poll`, since the checkpoint, which is complete, is not affected.
        """
        target = self.folder / path.name
        with self._adding:
            waits = any(task.target == target for task in tuple(self.tasks))
            if self.closed or not self.run.world.is_main or waits:
                return
            if target.exists() or not path.is_dir():
                return
            task = ExportProcess(self.folder / f".{path.name}", target)
            task.clear()
            try:
                # Hard links cost no time and no space; where they are unsupported, it is a copy.
                shutil.copytree(path, task.source, copy_function=_linked)
            except OSError as error:
                task.error = _reason(error)
            self.tasks.append(task)

    def poll(self) -> None:
        """Report a finished export, and start the next one."""
        while self.tasks:
            task = self.tasks[0]
            if task.process is None and not task.error:
                try:
                    task.began, task.process = time.monotonic(), self._start_process(task)
                except OSError as error:
                    task.error = _reason(error)
            if task.process is not None and task.process.poll() is None:
                return
            self.tasks.popleft()
            self._report_end(task)

    def waited(self) -> bool:
        """Wait for at most `POLL_SECONDS`; True if all exports have ended."""
        ends = time.monotonic() + POLL_SECONDS
        self.poll()
        while self.tasks and time.monotonic() < ends:
            process = self.tasks[0].process
            with suppress(subprocess.TimeoutExpired):
                assert process is not None
                process.wait(max(ends - time.monotonic(), 0.1))
            self.poll()
        return not self.tasks

    def _start_process(self, task: ExportProcess) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "setpoint", "export", str(task.source), str(task.target)]
        dtype = self.config.stored_dtype
        command += [] if dtype is None else ["--dtype", dtype]
        command += ["--parallel.device", "cpu"]
        environment = {k: v for k, v in os.environ.items() if k not in OF_RANKS}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        with task.log.open("wb") as log:
            # A separate session: Ctrl-C is only for the run.
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                start_new_session=True,
            )  # fmt: skip

    def _report_end(self, task: ExportProcess) -> None:
        step, name = int(task.target.name.rpartition("-")[2]), task.target.name
        seconds = round(time.monotonic() - task.began, 3)
        status = None if task.process is None else task.process.returncode
        if status == 0:
            self.run.events.write(
                "export", step=step, directory=f"{FOLDER}/{name}", seconds=seconds
            )
        else:
            message = task.error
            if status is not None:
                # Libraries may have printed warnings before.
                text = "\n" + task.log.read_text(errors="replace")
                message = text.rpartition("\nerror: ")[2].strip().partition("\nValid:")[0]
                message = message or f"the process ended with status {status}"
            self.failed.append(f"{name} was saved but cannot be exported: {message}")
            self.run.events.write("fault", step=step, error=self.failed[-1])
            self.run.progress.note(self.failed[-1])
        task.clear()
        keep = self.config.keep
        if keep is not None:
            for old in sorted(self.folder.glob("step-*"))[:-keep]:
                shutil.rmtree(old, ignore_errors=True)


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _reason(error: OSError) -> str:
    """Reason of an error; of the first file if `copytree` collected several."""
    first = error.args[0][0][2] if isinstance(error, shutil.Error) else error
    return str(first)
