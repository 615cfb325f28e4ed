"""What a run is named by: its seed, and the directory that follows from the fingerprint."""

from __future__ import annotations

import os

from setpoint.config import (
    MAX_NAME,
    MAX_PATH,
    PROGRAM,
    SHORT,
    Origin,
    Recorded,
    SetpointError,
    can_be_path,
    chain_of,
    fingerprint,
    shown_plain,
)
from setpoint.train.config import Job

DRAWN = "drawn, since seed is null"


def run_directory_of(job: Job, digest: str | None = None) -> str:
    """The directory of a job: workspace/experiment/name-fingerprint.

    The same command gives the same directory, so that it resumes; a change of anything that is
    part of the fingerprint gives another one.

    Returns:
        the path, relative if the workspace is; `~` stands for the home directory.

    Raises:
        SetpointError: if the directory cannot be named.
    """
    # The record keeps the workspace as it was written, so that it fits another home, too.
    workspace = os.path.expanduser(job.workspace)
    parts = [workspace, job.experiment or "", f"{job.name}-{(digest or fingerprint(job))[:SHORT]}"]
    groups = job.parallel.torchft
    if groups is not None and groups.replica_id:
        parts[-1] += f"-replica-{groups.replica_id}"
    path = os.path.join(*[part for part in parts if part])
    if not can_be_path(path):
        raise SetpointError(
            f"the run directory, workspace/experiment/name-fingerprint, cannot be called "
            f"{shown_plain(path)}: a name has at most {MAX_NAME} bytes, and a path {MAX_PATH}; "
            f"shorten the field workspace, experiment or name"
        )
    return path


def draw_seed(draft: Job) -> None:
    """Replace a null seed by one that is drawn and so recorded; any other stays.

    Raises:
        SetpointError: this is one rank of several, each of which would draw another.
    """
    if draft.seed is None:
        from setpoint.parallel.rank import launched

        if launched() > 1:
            raise SetpointError(
                "seed = null: each rank would draw another seed.\nValid: a number, or `setpoint "
                "train ... --nproc N`, which draws one for all"
            )
        import secrets  # which loads hashlib, and no other command draws any

        draft.set_field("seed", secrets.randbits(62), Origin(PROGRAM, DRAWN))


def is_drawn(job: Job) -> bool:
    """Whether the seed was drawn by this process, so that the same command draws another one."""
    chain = chain_of(job, "seed")
    last = chain[-1][0] if chain else None
    return last is not None and not isinstance(last, Recorded) and DRAWN in last.describe(("seed",))
