"""Verified downloads of checkpoints and runs from a URL."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from setpoint.checkpoint.folder import damaged, directory_name, list_checkpoints, point, temporary
from setpoint.checkpoint.loading import agree
from setpoint.checkpoint.manifest import MANIFEST, DamagedCheckpoint
from setpoint.checkpoint.places import CHECKPOINTS, newest_whole, split_url
from setpoint.config import ConfigError, RunError, SetpointError
from setpoint.files.atomic import sync_directory, write_file, write_text
from setpoint.ops.remote_folder import RemoteError, repeated
from setpoint.ops.remote_run import RemoteCheckpoint, RemoteRun, remote_of
from setpoint.ops.uploads import (
    EVENTS,
    RECORD,
    ROWS,
    UploadReport,
    read_pending,
)
from setpoint.parallel.world import World
from setpoint.track.jsonl import whole_lines
from setpoint.train.config import Job
from setpoint.train.open import locked_directory
from setpoint.train.rules.run_rules import protocol_problems
from setpoint.train.session import Run


def fetched(url: str, into: Path) -> Path:
    """Download and verify a checkpoint.

    Arguments:
        url: the URL of a run, of its checkpoints or of one of them, or of its `latest` or `best`.
        into: a folder for checkpoints, created if missing; an identical checkpoint in it is reused.

    Returns:
        directory of the checkpoint, or of the newest valid one if `url` names none.

    Raises:
        SetpointError: there is no checkpoint, or it is damaged.
        RemoteError: the service does not answer.
    """
    run_url, selector = split_url(url)
    run = RemoteRun(run_url)
    step = repeated(lambda: run.pointer(selector)) if isinstance(selector, str) else selector
    reasons: list[str] = []

    def on_damaged(name: str, reason: str) -> None:
        reasons.append(f"{name}: {reason}")

    def find() -> list[RemoteCheckpoint | None]:
        if selector is None:
            return [*run.complete_checkpoints(on_damaged)]
        return [] if step is None else [run.find(step)]

    for checkpoint in repeated(find):
        if checkpoint is None:
            continue
        target = into / directory_name(checkpoint.step)
        with _writing(into):
            manifest = target / MANIFEST
            if manifest.is_file() and manifest.read_bytes() == checkpoint.text:
                return target
        try:
            return fetch(World(torch.device("cpu")), run, checkpoint, into)
        except DamagedCheckpoint as error:
            reasons.append(f"{error.path.name}: {error.reason}")
    passed = f"; damaged: {'; '.join(reasons)}" if reasons else ""
    raise SetpointError(f"there is no complete checkpoint at {url}{passed}")


def fetch(world: World, run: RemoteRun, checkpoint: RemoteCheckpoint, into: Path) -> Path:
    """Download a checkpoint, each rank a share of its files; it is renamed when complete.

    An existing checkpoint of the same step is set aside.

    Arguments:
        into: a folder for checkpoints, created if missing.

    Raises:
        DamagedCheckpoint: a file, named in the error, is missing or differs at the URL.
        RemoteError: the service does not answer.
        RunError: the disk fails.
    """
    name, files = directory_name(checkpoint.step), checkpoint.manifest.files

    def begin() -> Path:
        with _writing(into):
            into.mkdir(parents=True, exist_ok=True)
            folder = temporary(into, name)
            folder.mkdir(exist_ok=True)
            return folder

    def end() -> Path:
        lost = next((file for file in sorted(files) if not (folder / file).exists()), None)
        if lost is not None:
            raise SetpointError(
                f"{lost} of {name} was fetched by another rank but is not in {folder}.\n"
                f"Valid: a run directory that all ranks share"
            )
        target = into / name
        with _writing(into):
            (folder / MANIFEST).unlink(missing_ok=True)
            write_file(folder / MANIFEST, [checkpoint.text])
            sync_directory(folder)
            if target.exists():
                os.rename(target, damaged(into, name))
            os.rename(folder, target)
            sync_directory(into)
        return target

    folder = world.on_main(begin)
    refused: SetpointError | None = None
    try:
        with _writing(into):
            run.download(checkpoint, sorted(files)[world.rank :: world.size], folder)
    except SetpointError as error:
        refused = error
    try:
        agree(world, refused)
    except DamagedCheckpoint:
        if world.is_main:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return world.on_main(end)


def bring_back(
    job: Job, path: Path, world: World, show: Callable[[str], None]
) -> list[UploadReport]:
    """Download missing files of a run directory, before anything is compared.

    Every rank must call it, and downloads a share of the files.

    Arguments:
        show: prints a line for the user.

    Returns:
        downloaded and skipped checkpoints.

    Raises:
        SetpointError: the run must not resume, the directory cannot be written, or there is no
            complete checkpoint at the URL or locally.
        RemoteError: the service does not answer, or refuses to write, and there is no local
            checkpoint to resume from.
    """
    section = job.checkpoint.remote
    assert section is not None
    problems = list(protocol_problems(job))
    if problems:
        raise ConfigError(problems)
    remote, reports = remote_of(section, path), list[UploadReport]()

    def newer() -> RemoteCheckpoint | None:
        return _newer(remote, path / CHECKPOINTS, job, reports)

    newest = world.on_main(newer)
    if newest is not None:
        with locked_directory(world, path):
            step = fetch_newest(world, remote, path / CHECKPOINTS, newest, reports, show)
            if step is not None:
                world.on_main(lambda: _fetch_record(remote, path))

    def require_any() -> None:
        damaged = [
            f"{report.details['checkpoint']}: {report.details['reason']}"
            for report in reports
            if report.event == "damaged"
        ]
        if damaged and newest_whole(path / CHECKPOINTS)[0] is None:
            # As for a run directory: starting over would hide the existing checkpoints.
            raise RunError(
                f"no checkpoint at {remote.url} is complete ({'; '.join(damaged)}); to start over, "
                f"give the run another --name, or move them away"
            )

    world.on_main(require_any)
    if job.checkpoint.save and not list_checkpoints(path / CHECKPOINTS):
        # A started run continues without the service; a new one should not start.
        world.on_main(remote.require_writable)
    return reports


def would_fetch(job: Job, path: Path) -> str | None:
    """List what `bring_back` would download, without writing anything.

    Raises:
        SetpointError: as in `bring_back`.
    """
    section = job.checkpoint.remote
    assert section is not None
    remote = remote_of(section, path)
    newest = _newer(remote, path / CHECKPOINTS, job, [])
    if newest is None:
        return None
    return f"{directory_name(newest.step)} would be fetched from {remote.url} first"


def fetch_newest(
    world: World,
    remote: RemoteRun,
    root: Path,
    first: RemoteCheckpoint,
    reports: list[UploadReport],
    show: Callable[[str], None],
    than: int | None = None,
) -> int | None:
    """Download the newest valid checkpoint and the best one, and set the pointers.

    Arguments:
        root: the checkpoint folder of a run, which must be locked.
        first: the first checkpoint to try.
        reports: receives reports about downloaded checkpoints and skipped, damaged ones.
        show: prints a line for the user.

    Returns:
        step of the newest checkpoint; None if no valid one is newer than the local ones.
    """
    candidate: RemoteCheckpoint | None = first
    passed: set[int] = set()
    while candidate is not None and not _fetch(world, remote, root, candidate, reports, show):
        passed.add(candidate.step)

        def next_one() -> RemoteCheckpoint | None:
            return _newer(remote, root, None, [], passed, than)

        candidate = world.on_main(next_one)
    if candidate is None:
        return None

    def best_one() -> RemoteCheckpoint | None:
        step = repeated(lambda: remote.pointer("best"))
        if step is None or step in list_checkpoints(root):
            return None
        try:
            return repeated(lambda: remote.find(step))
        except DamagedCheckpoint as error:
            reports.append(_damage(remote, directory_name(step), error.reason))
            return None

    best = world.on_main(best_one)
    if best is not None:
        _fetch(world, remote, root, best, reports, show)

    def name_them() -> None:
        step = repeated(lambda: remote.pointer("best"))
        if step is not None and step in list_checkpoints(root):
            point(root, "best", step)
        point(root, "latest", candidate.step)

    world.on_main(name_them)
    return candidate.step


def fetch_undamaged(run: Run, than: int | None, reports: list[UploadReport]) -> bool:
    """Download a checkpoint newer than the newest valid local one, if any local one is damaged.

    Arguments:
        than: step of the newest valid local checkpoint; None if there is none.
        reports: receives reports about downloaded checkpoints and skipped, damaged ones.

    Returns:
        whether there is such a checkpoint.
    """
    section, world, root = run.job.checkpoint.remote, run.world, run.store.root
    assert section is not None
    remote, least = remote_of(section, run.directory), -1 if than is None else than
    newest = world.on_main(lambda: _newer(remote, root, None, reports, (), least))
    if newest is None:
        return False
    show = run.progress.note
    return fetch_newest(world, remote, root, newest, reports, show, least) is not None


def _newer(
    remote: RemoteRun,
    root: Path,
    job: Job | None,
    reports: list[UploadReport],
    passed: Collection[int] = (),
    than: int | None = None,
) -> RemoteCheckpoint | None:
    """The newest valid checkpoint at a URL if it is newer than all local ones."""
    local_step, _ = newest_whole(root)
    local_step = local_step if than is None else than
    pending = read_pending(root)

    def on_damaged(name: str, reason: str) -> None:
        reports.append(_damage(remote, name, reason))

    def newest() -> RemoteCheckpoint | None:
        reports.clear()
        for candidate in remote.complete_checkpoints(on_damaged):
            if local_step is not None and candidate.step <= local_step:
                return None
            if candidate.step not in passed and (pending is None or candidate.step <= pending):
                return candidate
        return None

    try:
        candidate = repeated(newest)
    except RemoteError as error:
        if local_step is None:
            raise RemoteError(
                f"{error}. It is unknown whether the run was trained elsewhere; "
                f"--checkpoint.remote null starts it here"
            ) from error
        text = f"{error}. The run resumes from its own directory"
        reports.append(UploadReport("fetch_failed", {"url": remote.url, "error": str(error)}, text))
        return None
    if candidate is not None and job is not None and job.checkpoint.resume == "never":
        raise SetpointError(
            f"checkpoint.resume = never, but {remote.url} has checkpoints; choose another "
            f"--name, or --checkpoint.resume auto to resume"
        )
    return candidate


def _fetch(
    world: World,
    remote: RemoteRun,
    root: Path,
    checkpoint: RemoteCheckpoint,
    reports: list[UploadReport],
    show: Callable[[str], None],
) -> bool:
    """Download a checkpoint, and report it.

    Returns:
        False if it is damaged at the URL.
    """
    name = directory_name(checkpoint.step)
    size = sum(written.size for written in checkpoint.manifest.files.values())
    show(f"fetching {name} from {remote.url} ({size / 1e6:.1f} MB)")
    try:
        fetch(world, remote, checkpoint, root)
    except DamagedCheckpoint as error:
        reports.append(_damage(remote, name, error.reason))
        return False
    details = {"checkpoint": name, "url": remote.url, "bytes": size}
    reports.append(UploadReport("fetch", details))
    return True


def _damage(remote: RemoteRun, name: str, reason: str) -> UploadReport:
    text = f"{name} at {remote.url} is corrupt, skipping it: {reason}"
    return UploadReport("damaged", {"checkpoint": name, "url": remote.url, "reason": reason}, text)


def _fetch_record(remote: RemoteRun, path: Path) -> None:
    """Download the metrics up to the checkpoint, and missing files of the record."""
    with _writing(path):
        for name in RECORD:
            if name in ROWS or not (path / name).exists():
                repeated(partial(remote.download_record, name, path / name))
            elif name == EVENTS:
                _merge_events(remote, path / name)


def _merge_events(remote: RemoteRun, place: Path) -> None:
    """Prepend the events at a URL to the local ones.

    The downloaded chain seals the prepended events; the next link will seal the local ones.

    Raises:
        OSError: the disk fails.
    """
    fetched = place.with_name(f"{place.name}.tmp-fetched")
    try:
        if repeated(partial(remote.download_record, place.name, fetched)):
            there = list(whole_lines(fetched))
            known = set(there)
            lines = there + [line for line in whole_lines(place) if line not in known]
            write_text(place, b"".join(line + b"\n" for line in lines).decode(errors="replace"))
    finally:
        fetched.unlink(missing_ok=True)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}") from error
