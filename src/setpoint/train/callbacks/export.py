"""Exports checkpoints as Hugging Face models, by a process beside the run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from setpoint.checkpoint.folder import directory_name, list_checkpoints
from setpoint.config import RunError
from setpoint.parallel.world import ToldByMain
from setpoint.train.loop import Callback, Phase

if TYPE_CHECKING:
    from setpoint.checkpoint.config import Export
    from setpoint.parallel.world import World
    from setpoint.track.events import EventLog
    from setpoint.track.progress import Progress
    from setpoint.train.loop import Loop, StepResult

FOLDER = "exports"
"""Where exports lie in a run directory."""
LOOK = 5.0
"""Seconds between two looks at a process that is waited for, in which other ranks wait."""
OF_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
            "MASTER_PORT")  # fmt: skip
"""Variables by which a process would take itself for a rank."""


@dataclass(slots=True)
class Task:
    """An export that has begun, or waits for the one before.

    Arguments:
        source: links to the files of the checkpoint, which may be removed meanwhile.
    """

    source: Path
    target: Path
    began: float = 0.0
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """What the process says."""
        return self.source.with_suffix(".log")

    def clear(self) -> None:
        """Remove what is beside the export."""
        shutil.rmtree(self.source, ignore_errors=True)
        self.log.unlink(missing_ok=True)


class ExportCallback(Callback):
    """Exports each checkpoint or the last one, one after the other, while training goes on.

    The main rank starts `setpoint export` in a process of its own, which reads what is on the disk,
    however many ranks have written it, and gives a directory its name when it is whole.

    Arguments:
        checkpoints, folder: of the run, and where exports go.
    """

    phase = Phase.KEEP

    def __init__(
        self,
        section: Export,
        world: World,
        checkpoints: Path,
        folder: Path,
        events: EventLog,
        progress: Progress,
    ) -> None:
        self.section, self.world = section, world
        self.checkpoints, self.folder = checkpoints, folder
        self.events, self.progress = events, progress
        self.tasks: deque[Task] = deque()
        self.failed: list[str] = []

    def saved(self, path: Path) -> None:
        """Hear of a checkpoint that is there."""
        if self.section.when == "each_save":
            self.export(path)

    def start(self, loop: Loop) -> None:
        """Remove what a process before has left, and make up for the newest checkpoint."""
        if not self.world.is_main:
            return
        for each in self.folder.glob(".*"):
            shutil.rmtree(each, ignore_errors=True)
            with suppress(OSError):
                each.unlink()
        newest = max(list_checkpoints(self.checkpoints).items(), default=None)
        if newest is not None and newest[0] == loop.position.step:
            self.saved(newest[1])

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Take note of what has ended."""
        self.look()

    def finish(self, loop: Loop) -> None:
        """Export the last checkpoint of a finished run, and wait for all.

        Raises:
            RunError: one has failed; the run is trained, and the same command tries again.
        """
        if not self.world.on_main(lambda: loop.is_over):
            return
        if self.world.is_main:
            self.export(self.checkpoints / directory_name(loop.position.step))
        is_said = False
        while not self.world.on_main(self.waited):
            if not is_said and self.tasks:
                self.progress.note(f"waiting for the export of {self.tasks[0].target.name}")
            is_said = True
        said = self.world.on_main(lambda: "; ".join(self.failed))
        if said:
            raise RunError(said) if self.world.is_main else ToldByMain(said, RunError.status)

    def close(self, loop: Loop) -> None:
        """End what is not finished; the next session makes up for it."""
        for task in self.tasks:
            if task.process is not None:
                task.process.kill()
                task.process.wait()
            task.clear()
        self.tasks.clear()

    def export(self, path: Path) -> None:
        """Begin to export a checkpoint, where it is there and its export is not."""
        if not self.world.is_main:
            return
        target = self.folder / path.name
        waits = any(task.target == target for task in self.tasks)
        if waits or target.exists() or not path.is_dir():
            return
        task = Task(self.folder / f".{path.name}", target)
        task.clear()
        # No time and no space where the disk links files; a copy otherwise.
        shutil.copytree(path, task.source, copy_function=_linked)
        self.tasks.append(task)
        self.look()

    def look(self) -> None:
        """Take note of the export that has ended, and begin the next."""
        while self.tasks:
            task = self.tasks[0]
            if task.process is None:
                task.began, task.process = time.monotonic(), self._started(task)
            if task.process.poll() is None:
                return
            self.tasks.popleft()
            self._ended(task, task.process.returncode)

    def waited(self) -> bool:
        """Whether all exports have ended, after at most `LOOK` seconds."""
        ends = time.monotonic() + LOOK
        self.look()
        while self.tasks and time.monotonic() < ends:
            process = self.tasks[0].process
            with suppress(subprocess.TimeoutExpired):
                assert process is not None
                process.wait(max(ends - time.monotonic(), 0.1))
            self.look()
        return not self.tasks

    def _started(self, task: Task) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "setpoint", "export", str(task.source), str(task.target)]
        dtype = self.section.stored_dtype
        command += [] if dtype is None else ["--dtype", dtype]
        command += ["--parallel.device", "cpu"]
        environment = {k: v for k, v in os.environ.items() if k not in OF_RANKS}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        with task.log.open("wb") as log:
            # A session of its own: Ctrl-C is for the run alone.
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                start_new_session=True,
            )  # fmt: skip

    def _ended(self, task: Task, status: int) -> None:
        step, name = int(task.target.name.rpartition("-")[2]), task.target.name
        seconds = round(time.monotonic() - task.began, 3)
        if status == 0:
            self.events.write("export", step=step, directory=f"{FOLDER}/{name}", seconds=seconds)
        else:
            said = task.log.read_text(errors="replace").strip().removeprefix("error: ")
            said = said.partition("\nValid:")[0] or f"the process ended with status {status}"
            self.failed.append(f"{name} is saved, and cannot be exported: {said}")
            self.events.write("fault", step=step, error=self.failed[-1])
            self.progress.note(self.failed[-1])
        task.clear()
        keep = self.section.keep
        if keep is not None:
            for old in sorted(self.folder.glob("step-*"))[:-keep]:
                shutil.rmtree(old, ignore_errors=True)


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
