"""Effects of the fields of `[checkpoint]`."""

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, current_thread, main_thread
from typing import Any

import fsspec
import pytest
from safetensors.torch import load_file

from setpoint.checkpoint import staging
from setpoint.checkpoint.folder import list_checkpoints
from setpoint.checkpoint.loading import load_directory
from setpoint.checkpoint.staging import HostMemory, Save
from setpoint.checkpoint.store import CheckpointStore
from setpoint.config import RunError, resolve
from setpoint.files import atomic
from setpoint.files.tensor_file import DTYPES
from setpoint.model.pretrained.save_pretrained import save_pretrained
from setpoint.ops import exports
from setpoint.ops.uploads import Uploads
from setpoint.train import open as opening
from setpoint.train.config import Job
from setpoint.train.run import train
from setpoint.train.run_name import run_directory_of

from ..small import events, small_job
from .observations import Row


def saved(job: Job) -> tuple[list[int], list[str]]:
    """Checkpoints at the end of a run, and its pointers."""
    run = train(job).directory
    pointers = [name for name in ("latest", "best") if (run / "checkpoints" / name).exists()]
    return list(list_checkpoints(run / "checkpoints")), pointers


def dtypes_of_the_last(job: Job) -> set[str]:
    """Dtypes of the weights of the last checkpoint."""
    [folder] = list_checkpoints(train(job).directory / "checkpoints").values()
    return {DTYPES[each.dtype] for each in load_directory(folder).tensors["model"].values()}


def trained_twice(job: Job) -> str:
    """The outcome of training again in the directory of a run."""
    train(job, directory=Path(job.workspace) / "here")
    return "went on"


EVERY_STEP = ("checkpoint.every=1 steps",)
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
    """A disk that writes nothing before a save is waited for."""
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
    """Delay copies that may be made during a step to its end, right before the update."""
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
    """Number of pending saves at the first wait."""
    with waiting_disk() as pending:
        train(job)
    return pending[0]


def patience(job: Job) -> str:
    """The outcome of a run whose last checkpoint is written only after the wait has timed out."""
    wait = Save.wait

    def ending(pending: Any, until: float | None) -> bool:
        return until is None or wait(pending, until)

    with waiting_disk(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Save, "wait", ending)
        try:
            train(job)
        except RunError as error:
            return str(error).partition(" s and")[0]
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
        patch.setattr(exports.subprocess, "Popen", InProcess)
        run = train(job).directory
    assert not list((run / "exports").glob(".*"))
    return [
        (folder.name, {str(each.dtype) for each in load_file(folder / WEIGHTS).values()})
        for folder in sorted((run / "exports").glob("*"))
    ]


WEIGHTS = "model.safetensors"
EXPORT = ("checkpoint.export={}", "checkpoint.every=2 steps")
LOAD = "checkpoint.load={tmp}/loaded"


def started_at(job: Job) -> int:
    """The step that a run starts at."""
    return train(job).started.step


def resumed_on_two_ranks(job: Job) -> str:
    """The outcome of resuming a run of one rank on two."""
    run = train(job).directory
    draft = job.evolve()
    draft.parallel.world_size = draft.parallel.shard = 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "launched", lambda: 2)
        opening.compare(resolve(draft), run, ())
    return "resumes"


def left_out(job: Job) -> bool:
    """True if a checkpoint omits frozen parameters."""
    return (train(job).directory / "checkpoints" / "step-00000004" / "base.json").exists()


def prepare_loaded(folder: Path) -> None:
    """Make the run that rows name."""
    if not (folder / "loaded").exists():
        small = ("duration=2 steps", "model.dropout=0", "schedule.horizon=4 steps")
        train(small_job(folder / "first", *small), directory=folder / "loaded")


BUCKET = "memory://effects"


def bucket(job: Job) -> list[str]:
    """The checkpoints at any URL of this process after a run."""
    files = fsspec.filesystem("memory")
    if files.exists("/effects"):
        files.rm("/effects", recursive=True)
    train(job)
    found = {path.rpartition("/")[0] for path in files.glob("/effects*/**/manifest.json")}
    return sorted(path.replace(run_directory_of(job).rpartition("/")[2], "RUN") for path in found)


def uploaded(job: Job) -> list[tuple[str, str]]:
    """The checkpoints that were uploaded, and how each was verified."""
    bucket(job)
    rows = events(Path(run_directory_of(job)), "upload")
    return [(row["checkpoint"], row["verified"]) for row in rows]


def unfinished(job: Job) -> tuple[list[str], str]:
    """Checkpoints left without an upload where no service answers, and the error."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(RunError) as raised:
        patch.setattr(Uploads, "_work", lambda self: None)
        bucket(job)
    folder = run_directory_of(job)
    row = events(Path(folder), "upload_unfinished")[0]
    shutil.rmtree(folder)
    return row["checkpoints"], str(raised.value).partition(". It is")[0].partition("within")[2]


REMOTE = (
    f"checkpoint.remote.url={BUCKET}",
    "checkpoint.every=1 steps",
    "checkpoint.remote.waiting=9",
    "evaluation=null",
)
QUICK = (*REMOTE, "checkpoint.remote.wait_timeout=0")
PLACE = "/effects/RUN/checkpoints/step-0000000"


ROWS: dict[str, Row] = {
    "Checkpoint.every": ("checkpoint.every=3 steps", saved, ("checkpoint.keep=null",),
        ([3, 4], ["latest", "best"])),
    # An epoch of the small job is about 113 steps.
    "Checkpoint.also_every": ("checkpoint.also_every=0.02 epochs", saved,
        ("checkpoint.every=2 steps", "checkpoint.keep=null"), ([2, 3, 4], ["latest", "best"])),
    "Checkpoint.at_start": ("checkpoint.at_start=true", saved, ("checkpoint.keep=null",),
        ([0, 4], ["latest", "best"])),
    "Checkpoint.at": ("checkpoint.at=[1, 2]", saved, ("checkpoint.keep=1",),
        ([1, 2, 4], ["latest", "best"])),
    "Checkpoint.last": ("checkpoint.last=none", saved, (), ([], [])),
    "Checkpoint.last_dtype": ("checkpoint.last_dtype=bf16", dtypes_of_the_last,
        ("checkpoint.last=weights",), {"BF16"}),
    "Checkpoint.keep": ("checkpoint.keep=1", saved, (*EVERY_STEP, "evaluation=null"),
        ([4], ["latest"])),
    "Checkpoint.keep_every": ("checkpoint.keep_every=2 steps", saved,
        (*EVERY_STEP, "checkpoint.keep=1", "checkpoint.keep_best=false"), ([2, 4], ["latest"])),
    "Checkpoint.save": ("checkpoint.save=false", saved, (), ([], [])),
    "Checkpoint.keep_best": ("checkpoint.keep_best=false", saved, EVERY_STEP,
        ([3, 4], ["latest"])),
    "Checkpoint.resume": ("checkpoint.resume=must", trained_twice),
    "Checkpoint.export": ("checkpoint.export={}", exported, (),
        [("step-00000004", {"torch.float32"})]),
    "Export.when": ("checkpoint.export.when=each_save", exported, EXPORT,
        [("step-00000002", {"torch.float32"}), ("step-00000004", {"torch.float32"})]),
    "Export.stored_dtype": ("checkpoint.export.stored_dtype=bf16", exported, EXPORT,
        [("step-00000004", {"torch.bfloat16"})]),
    "Export.keep": ("checkpoint.export.keep=1", exported,
        (*EXPORT, "checkpoint.export.when=each_save"), [("step-00000004", {"torch.float32"})]),
    "Checkpoint.mode": ("checkpoint.mode=async", writers, (), {"setpoint-checkpoint"}),
    "Checkpoint.in_flight": ("checkpoint.in_flight=3", copies, ASYNC, 3),
    "Checkpoint.wait_timeout": ("checkpoint.wait_timeout=0.01", patience,
        (ASYNC[0], "checkpoint.every=never"),
        "the checkpoint of step 4 was not written within checkpoint.wait_timeout = 0.01"),
    "Checkpoint.load": (LOAD, started_at, (), 2),
    "Checkpoint.exclude": ("checkpoint.exclude=[position]", started_at, (LOAD,), 0),
    "Checkpoint.resharding": ("checkpoint.resharding=refuse", resumed_on_two_ranks,
        ("batch.global_size=4", "batch.micro_size=2"), "refused: SetpointError",
        ("accumulation",)),
    "Checkpoint.save_frozen": ("checkpoint.save_frozen=false", left_out,
        ("model.pretrained={tmp}/loaded", "optimizer.frozen=['^layers']"), True),
    "Checkpoint.remote": (REMOTE[0], bucket, (), [PLACE + "4"]),
    "Remote.url": (f"checkpoint.remote.url={BUCKET}/b", bucket, REMOTE,
        [f"/effects/b/RUN/checkpoints/step-0000000{n}" for n in (3, 4)]),
    "Remote.every": ("checkpoint.remote.every=3 steps", uploaded, REMOTE,
        [(f"step-0000000{n}", "digest") for n in (3, 4)]),
    "Remote.keep": ("checkpoint.remote.keep=1", bucket, REMOTE, [PLACE + "4"]),
    "Remote.verify": ("checkpoint.remote.verify=size", uploaded, REMOTE,
        [(f"step-0000000{n}", "size") for n in range(1, 5)]),
    "Remote.waiting": ("checkpoint.remote.waiting=1", unfinished, QUICK,
        (["step-00000004"], " checkpoint.remote.wait_timeout = 0 s")),
    "Remote.wait_timeout": ("checkpoint.remote.wait_timeout=0.25", unfinished, QUICK,
        ([f"step-0000000{n}" for n in range(1, 5)], " checkpoint.remote.wait_timeout = 0.25 s")),
}  # fmt: skip
