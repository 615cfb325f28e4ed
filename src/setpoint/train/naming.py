"""Where the run of a job lies."""

from __future__ import annotations

import os

from setpoint.config.fingerprint import SHORT, fingerprint
from setpoint.train.config import Job


def run_directory_of(job: Job, digest: str | None = None) -> str:
    """The directory of a job: workspace/experiment/name-fingerprint.

    The same command gives the same directory, so that it resumes; a change of anything that is
    part of what is learned gives another one.

    Arguments:
        job: the resolved configuration.
        digest: its fingerprint, where that is known already.

    Returns:
        the path, relative if the workspace is; `~` stands for the home directory.
    """
    # The record keeps the workspace as it was written, so that it fits another home, too.
    workspace = os.path.expanduser(job.workspace)
    parts = [workspace, job.experiment or "", f"{job.name}-{(digest or fingerprint(job))[:SHORT]}"]
    return os.path.join(*[part for part in parts if part])
