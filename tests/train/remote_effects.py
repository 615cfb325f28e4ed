"""What the fields of `[checkpoint.remote]` change."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import fsspec
import pytest

from setpoint.config import RunError
from setpoint.ops.uploads import Uploads
from setpoint.train.config import Job
from setpoint.train.run import train
from setpoint.train.run_name import run_directory_of

from .small import events

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
    """What is not uploaded where no service answers, and what is said of it."""
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

ROWS: dict[str, tuple[Any, ...]] = {
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
                            ([f"step-0000000{n}" for n in range(1, 5)],
                             " checkpoint.remote.wait_timeout = 0.25 s")),
}  # fmt: skip
