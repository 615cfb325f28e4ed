"""Identity of a run: its seed, and the directory named by the fingerprint."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from setpoint.config import (
    DERIVED,
    HEADER,
    IDENTITY,
    PROGRAM,
    Origin,
    SetpointError,
    can_be_path,
    chain_of,
    fingerprint,
    for_error,
    leaves,
    plain,
    resolve,
)
from setpoint.config.draft.walk import Leaf, field_at, is_default
from setpoint.config.record.record import SHORT, canonical_json, digest, identity_leaves
from setpoint.config.values.origin import RECORD, REFERENCE, Recorded
from setpoint.config.words.names import MAX_NAME, MAX_PATH, within
from setpoint.config.words.names import Path as FieldPath
from setpoint.config.words.plain_data import same
from setpoint.track.config import MARK
from setpoint.train.config import Job

DRAWN = "drawn, because seed is null"
FINGERPRINT = f"[0-9a-f]{{{SHORT}}}"
"""Pattern of the fingerprint in the name of a run directory."""
LOAD = "model.moe.load_sequences"
"""Derived from batch.micro_size, and so perhaps from the number of ranks; a run keeps its value."""


def run_directory_of(job: Job, digest: str | None = None) -> str:
    """The directory of a job: workspace/experiment/name-fingerprint.

    The same command leads to the same directory, and thus resumes; a different fingerprint leads to
    a new directory.

    Returns:
        the path, relative if the workspace is; `~` is the home directory.

    Raises:
        SetpointError: the directory cannot be named.
    """
    # The record has the workspace as written, which is valid for other home directories, too.
    workspace = os.path.expanduser(job.workspace)
    parts = [workspace, job.experiment or "", f"{job.name}-{(digest or fingerprint(job))[:SHORT]}"]
    groups = job.parallel.torchft
    if groups is not None and groups.replica_id:
        parts[-1] += f"-replica-{groups.replica_id}"
    path = os.path.join(*[part for part in parts if part])
    if not can_be_path(path):
        raise SetpointError(
            f"the run directory, workspace/experiment/name-fingerprint, cannot be named "
            f"{for_error(path)}: a name has at most {MAX_NAME} bytes, and a path {MAX_PATH}; "
            f"shorten the field workspace, experiment or name"
        )
    return path


def identity_mark(job: Job) -> str:
    """Name of an empty file in a run directory that identifies the run without its record.

    Returns:
        a name with a hash of the identity values that are not the defaults, so that a new field
        does not change it; without fields that may be derived, and the schedule's.
    """
    values = {
        leaf.key: plain(leaf.value)
        for leaf in identity_leaves(job)
        if not within(leaf.key, "schedule")
        and not is_default(job, leaf)
        and not _is_derived(job, leaf)
    }
    return MARK + digest(canonical_json(values))[:16]


def find_run(job: Job) -> str:
    """Find the directory of a job's run, possibly with another duration.

    A run keeps its directory when `--accept` changes its configuration; and if the learning-rate
    curve is derived from the duration, a longer run has a different fingerprint; so has the same
    job once a new field is declared. So if the directory named after the job does not exist, the
    records of neighboring runs with its mark are read.

    Returns:
        the directory of the run with this configuration; else of a run that differs only in its
        duration, the schedule values derived from it, a derived `LOAD`, and fields newer than its
        record; else of a new run.
    """
    path = run_directory_of(job)
    if job.seed is None or os.path.isdir(path):
        return path
    siblings = namesakes(path)
    mark = identity_mark(job) if siblings else ""
    siblings = [other for other in siblings if os.path.exists(os.path.join(other, mark))]
    values = [
        (leaf.path, plain(leaf.value))
        for leaf in (leaves(job) if siblings else ())
        if leaf.role is IDENTITY
        and not is_default(job, leaf)
        and not _may_differ(leaf.key, leaf.origin.layer)
    ]
    digest, match = fingerprint(job), None
    for other in siblings:
        record = _recorded(other)
        if _has_value(record, (HEADER, "fingerprint"), digest):
            return other
        # A quick check first: the full comparison reads the origins, too.
        if match is None and all(_has_value(record, *value) for value in values):
            match = other if _is_same(other, job) else None
    return match or path


def follow_load(job: Job, folder: str | Path) -> Job:
    """Count expert load over as many sequences as the run did, unless the job sets the number.

    Raises:
        ConfigError: the micro-batch is not a multiple of that number.
    """
    load = next((leaf for leaf in identity_leaves(job) if leaf.key == LOAD), None)
    if load is None or load.origin.layer != DERIVED:
        return job
    count: object = _recorded(folder)
    for key in LOAD.split("."):
        count = count.get(key) if isinstance(count, dict) else None
    if not isinstance(count, int) or count == load.value:
        return job
    draft = job.evolve()
    section: Any = draft.model
    section.moe.set_field("load_sequences", count, Origin(RECORD, str(folder)))
    return resolve(draft)


def namesakes(path: str) -> list[str]:
    """Neighbors of a run directory whose names differ only in the fingerprint, by name."""
    folder, name = os.path.split(path)
    if (found := re.search(rf"-({FINGERPRINT})(-replica-\d+)?$", name)) is None:
        return []
    before, after = (re.escape(part) for part in (name[: found.start(1)], name[found.end(1) :]))
    try:
        names = sorted(os.listdir(folder or "."))
    except OSError:
        return []
    return [
        os.path.join(folder, other)
        for other in names
        if other != name and re.fullmatch(before + FINGERPRINT + after, other)
    ]


def _may_differ(key: str, layer: str) -> bool:
    """True if an identity value is derived from the duration or the micro-batch."""
    if key == LOAD:
        return layer == DERIVED
    computed = layer in (DERIVED, REFERENCE) and key != "schedule.evaluated_on"
    return computed and within(key, "schedule")


def _is_derived(job: Job, leaf: Leaf) -> bool:
    """True if a value is derived when nothing sets it."""
    info = field_at(job, leaf.path)
    return leaf.origin.layer == DERIVED or (info is not None and info.derived)


def _recorded(folder: str | Path) -> dict[str, Any]:
    """The configuration in a record; empty if it cannot be read."""
    # Few calls read records, and the imports take time.
    import json

    from setpoint.config import CONFIG

    try:
        with open(os.path.join(folder, CONFIG), "rb") as file:
            record = json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _has_value(record: Any, path: FieldPath, value: object) -> bool:
    for key in path:
        try:
            record = record[key]
        except (KeyError, IndexError, TypeError):
            return False
    return same(record, value)


def _is_same(folder: str, job: Job) -> bool:
    """True if a record has a job's identity values, except those that may differ."""
    from setpoint.config.record.record import recorded_differences

    try:
        differences = recorded_differences(folder, job)
    except SetpointError:
        return False  # a run that cannot be read is not continued
    layers = {leaf.key: leaf.origin.layer for leaf in leaves(job)}
    return not any(
        item.role is IDENTITY and not _may_differ(item.path, layers.get(item.path, ""))
        for item in differences
    )


def draw_seed(draft: Job) -> None:
    """Replace a null seed with a drawn one, which is recorded.

    Raises:
        SetpointError: this is one of several ranks, each of which would draw a different seed.
    """
    if draft.seed is None:
        from setpoint.parallel.rank import launched

        if launched() > 1:
            raise SetpointError(
                "seed = null: each rank would draw a different seed.\nValid: a number, or "
                "`setpoint train ... --nproc N`, which draws one for all"
            )
        import secrets  # imports hashlib, and no other command draws a seed

        draft.set_field("seed", secrets.randbits(62), Origin(PROGRAM, DRAWN))


def is_drawn(job: Job) -> bool:
    """True if this process drew the seed, so that the same command would draw a different one."""
    chain = chain_of(job, "seed")
    last = chain[-1][0] if chain else None
    return last is not None and not isinstance(last, Recorded) and DRAWN in last.describe(("seed",))
