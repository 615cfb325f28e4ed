"""Checkpoints fetched from a URL: whole and verified, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from setpoint.config import RunError, SetpointError
from setpoint.files.atomic import sync_directory
from setpoint.files.durable import write_file

from .layout import (
    MANIFEST,
    POINTERS,
    PointerName,
    damaged,
    directory_name,
    step_of,
    temporary,
)
from .manifest import DamagedCheckpoint
from .remote import FOLDER, Found, RemoteRun
from .remote_folder import repeated


def split_url(url: str) -> tuple[str, int | PointerName | None]:
    """What a URL of a run, its checkpoints, or one of these means.

    Returns:
        the URL of the run; and the step or the pointer that is named, None for the newest.
    """
    run = url.rstrip("/")
    above, _, last = run.rpartition("/")
    which: int | PointerName | None = step_of(last)
    if last in POINTERS:
        which = "latest" if last == "latest" else "best"
    if which is not None:
        run, last = above, above.rpartition("/")[2]
    return run.removesuffix(f"/{FOLDER}"), which


def fetched(url: str, into: Path) -> Path:
    """Fetch a checkpoint from a URL, and verify it.

    Arguments:
        url: of a run, of its checkpoints or of one of them, or of `latest` or `best` there.
        into: a folder for checkpoints, made if it is not there; one that holds this very
            checkpoint already is used as it is.

    Returns:
        its directory: of the newest whole one where `url` names none.

    Raises:
        SetpointError: if there is none, or it is damaged.
        RemoteError: if the service does not answer.
    """
    at, which = split_url(url)
    run = RemoteRun(at)
    step = repeated(lambda: run.pointer(which)) if isinstance(which, str) else which
    reasons: list[str] = []
    candidates = (
        repeated(lambda: list(run.wholes(lambda name, why: reasons.append(f"{name}: {why}"))))
        if which is None
        else [repeated(lambda: run.find(step))] if step is not None else []
    )  # fmt: skip
    for found in candidates:
        if found is None:
            continue
        try:
            return fetch_whole(run, found, into)
        except DamagedCheckpoint as error:
            reasons.append(f"{error.path.name}: {error.reason}")
    passed = f"; damaged: {'; '.join(reasons)}" if reasons else ""
    raise SetpointError(f"there is no whole checkpoint at {url}{passed}")


def fetch_whole(run: RemoteRun, found: Found, into: Path) -> Path:
    """Fetch one checkpoint, unless it is there; it appears under its name when it is whole.

    Raises:
        DamagedCheckpoint: naming the file that is missing or differs at the URL.
        RemoteError: if the service does not answer.
        RunError: if the disk refuses.
    """
    target = into / directory_name(found.step)
    try:
        if (target / MANIFEST).is_file() and (target / MANIFEST).read_bytes() == found.text:
            return target
        folder = begin_fetch(found, into)
        run.download(found, found.manifest.files, folder)
        return end_fetch(found, folder)
    except OSError as error:
        raise RunError(f"{into} cannot be written: {error.strerror}") from error


def begin_fetch(found: Found, into: Path) -> Path:
    """Make the folder that the files of a checkpoint are fetched into.

    Raises:
        OSError: if the disk refuses.
    """
    into.mkdir(parents=True, exist_ok=True)
    folder = temporary(into, directory_name(found.step), os.getpid())
    folder.mkdir(exist_ok=True)
    return folder


def end_fetch(found: Found, folder: Path) -> Path:
    """Give a fetched checkpoint its name; one that has the name already is set aside.

    Raises:
        OSError: if the disk refuses.
    """
    (folder / MANIFEST).unlink(missing_ok=True)
    write_file(folder / MANIFEST, [found.text])
    sync_directory(folder)
    root, target = folder.parent, folder.parent / directory_name(found.step)
    if target.exists():
        os.rename(target, damaged(root, target.name))
    os.rename(folder, target)
    sync_directory(root)
    return target
