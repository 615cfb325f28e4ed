"""Rows of the table of effects: how checkpoints are written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, current_thread, main_thread
from typing import Any

import pytest
from safetensors.torch import load_file

from setpoint.checkpoint import staging
from setpoint.checkpoint.staging import HostMemory, Save
from setpoint.checkpoint.store import CheckpointStore
from setpoint.config import RunError
from setpoint.files import atomic
from setpoint.model.pretrained.save import save_pretrained
from setpoint.train.callbacks import save
from setpoint.train.config import Job
from setpoint.train.run import train

ASYNC = ("checkpoint.mode=async", "checkpoint.every=1 steps")


def writers(job: Job) -> set[str]:
    """The threads that write the files of checkpoints."""
    found: set[str] = set()

    def write(path: Path, chunks: Iterable[bytes | memoryview]) -> atomic.Written:
        found.add(current_thread().name)
        return atomic.write_file(path, chunks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "write_file", write)
        train(job)
    return found


@contextmanager
def waiting_disk() -> Iterator[list[int]]:
    """A disk that writes nothing before a save is waited for.

    Returns:
        a context; how many saves were pending whenever one was waited for.
    """
    waited, pending = Event(), list[int]()

    def write(path: Path, chunks: Iterable[bytes | memoryview]) -> atomic.Written:
        waited.wait()
        return atomic.write_file(path, chunks)

    finish = CheckpointStore._finish

    def finishing(store: CheckpointStore) -> None:
        pending.append(len(store._pending))
        waited.set()
        finish(store)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "write_file", write)
        patch.setattr(CheckpointStore, "_finish", finishing)
        patch.setattr(CheckpointStore, "poll", lambda _: None)
        yield pending
        waited.set()


@contextmanager
def late_copies() -> Iterator[list[int]]:
    """What may be copied during a step is copied at its very end, right before the update.

    Returns:
        a context; how many pieces each wait of the run's own thread has copied.
    """
    ended, found = Event(), list[int]()
    settle = HostMemory.finish

    def settling(memory: HostMemory) -> None:
        if current_thread() is main_thread():
            found.append(len(memory._later))
        else:
            until = time.monotonic() + 10
            while memory._later and time.monotonic() < until and not ended.wait(0.001):
                pass
        settle(memory)

    def without_delay(method: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any) -> Any:
            ended.set()
            try:
                return method(*given)
            finally:
                ended.clear()

        return called

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HostMemory, "finish", settling)
        for method in (CheckpointStore.wait, CheckpointStore.close):
            patch.setattr(CheckpointStore, method.__name__, without_delay(method))
        yield found
        ended.set()


def copies(job: Job) -> int:
    """How many copies wait to be written."""
    with waiting_disk() as pending:
        train(job)
    return pending[0]


def patience(job: Job) -> str:
    """What becomes of a run whose last checkpoint is not written before it is waited for."""
    ends = Save.ends

    def ending(pending: Any, until: float | None) -> bool:
        return until is None or ends(pending, until)

    with waiting_disk(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Save, "ends", ending)
        try:
            train(job)
        except RunError as error:
            return str(error).partition(" s,")[0]
    return "saved"


class InProcess:
    """In place of the process of an export: the same command, here and at once."""

    returncode = 0

    def __init__(self, command: list[str], **_: Any) -> None:
        source, target = map(Path, command[4:6])
        dtype = command[command.index("--dtype") + 1] if "--dtype" in command else None
        save_pretrained(source, target, dtype=dtype)

    def poll(self) -> int:
        return 0


def exported(job: Job) -> list[tuple[str, set[str]]]:
    """The exports that are there at the end, and the dtypes of their weights."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(save.subprocess, "Popen", InProcess)
        run = train(job).directory
    assert not list((run / "exports").glob(".*"))
    return [
        (folder.name, {str(each.dtype) for each in load_file(folder / WEIGHTS).values()})
        for folder in sorted((run / "exports").glob("*"))
    ]


WEIGHTS = "model.safetensors"
EXPORT = ("checkpoint.export={}", "checkpoint.every=2 steps")
ROWS: dict[str, tuple[Any, ...]] = {
    "Checkpoint.export": (
        "checkpoint.export={}", exported, (), [("step-00000004", {"torch.float32"})]
    ),
    "Export.when": (
        "checkpoint.export.when=each_save", exported, EXPORT,
        [("step-00000002", {"torch.float32"}), ("step-00000004", {"torch.float32"})],
    ),
    "Export.stored_dtype": (
        "checkpoint.export.stored_dtype=bf16", exported, EXPORT,
        [("step-00000004", {"torch.bfloat16"})],
    ),
    "Export.keep": (
        "checkpoint.export.keep=1", exported, (*EXPORT, "checkpoint.export.when=each_save"),
        [("step-00000004", {"torch.float32"})],
    ),
    "Checkpoint.mode": ("checkpoint.mode=async", writers, (), {"setpoint-checkpoint"}),
    "Checkpoint.in_flight": ("checkpoint.in_flight=3", copies, ASYNC, 3),
    "Checkpoint.wait_timeout": (
        "checkpoint.wait_timeout=0.01", patience, (ASYNC[0], "checkpoint.every=never"),
        "the checkpoint of step 4 is not written after checkpoint.wait_timeout = 0.01",
    ),
}  # fmt: skip
