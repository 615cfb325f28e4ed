"""What a run takes from a URL when it begins, and what it waits for at its end."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from setpoint.checkpoint.fetch import begin_fetch, end_fetch
from setpoint.checkpoint.layout import directory_name, list_checkpoints
from setpoint.checkpoint.manifest import DamagedCheckpoint
from setpoint.checkpoint.pointers import point
from setpoint.checkpoint.remote import FOLDER, Found, RemoteRun
from setpoint.checkpoint.remote_folder import RemoteError, repeated
from setpoint.checkpoint.uploads import Report, read_pending
from setpoint.config import ConfigError, RunError, SetpointError
from setpoint.files.atomic import write_text
from setpoint.parallel.world import ToldByMain, World
from setpoint.track.jsonl import whole_lines
from setpoint.train.config import Job
from setpoint.train.record.ranks import opened
from setpoint.train.record.uploading import (
    EVENTS,
    RECORD,
    ROWS,
    add_named,
    remote_of,
    report_uploads,
)
from setpoint.train.rules.run import protocol_problems
from setpoint.train.run_status import command_again, newest_whole
from setpoint.train.session import Run

LOOK = 1.0
"""Seconds that the ranks wait at once for uploads, so that none times out."""


def finish_uploads(run: Run, *, done: bool) -> None:
    """Wait at the end of a session for what is to be uploaded.

    Every rank calls it: those that upload nothing wait in short turns, so that none times out.

    Arguments:
        done: whether the run is finished, so that no later session uploads what is left.

    Raises:
        RunError: if something is not uploaded in time, and the run is finished.
    """
    section, world, cadence = run.job.checkpoint.remote, run.world, run.uploads
    if section is None:
        return
    ends, is_said = time.monotonic() + section.wait_timeout, False
    if cadence is not None:
        add_named(cadence.uploads)
        cadence.uploads.add_record()

    def look() -> bool:
        """Whether there is nothing to wait for any more."""
        assert cadence is not None
        left = ends - time.monotonic()
        return cadence.uploads.wait(max(0.0, min(LOOK, left))) or left <= LOOK

    while not world.on_main(look):
        if cadence is not None and not is_said:
            is_said = True
            what = ", ".join(cadence.uploads.unsent) or "the record of the run"
            run.progress.note(
                f"waiting up to {section.wait_timeout:g} s for the upload of {what} to "
                f"{cadence.uploads.run.url}; Ctrl-C leaves it for the next session"
            )
        if cadence is not None:
            report_uploads(cadence.uploads.reports(), run.events, run.progress)

    def end() -> str:
        assert cadence is not None
        uploads = cadence.uploads
        report_uploads(uploads.reports(), run.events, run.progress)
        if uploads.wait(0):
            return ""
        what = ", ".join(uploads.unsent) or "the record of the run"
        why = f": {uploads.failure}" if uploads.failure else ""
        run.events.write("upload_unfinished", checkpoints=uploads.unsent, url=uploads.run.url)
        return (
            f"{what}: not uploaded to {uploads.run.url} within checkpoint.remote.wait_timeout = "
            f"{section.wait_timeout:g} s{why}. It is saved in {uploads.root}; "
            f"{command_again(run.job, run.directory)} uploads it"
        )

    problem = world.on_main(end)
    if problem and done:
        raise RunError(problem) if world.is_main else ToldByMain(problem, RunError.status)
    if problem:
        run.progress.note(problem)


def bring_back(
    job: Job, directory: str | Path | None, world: World, show: Callable[[str], None]
) -> list[Report]:
    """Fetch what a URL holds of a run and its directory lacks, before anything is compared.

    Every rank calls it, and fetches its share of the files.

    Arguments:
        show: shows a line to people.

    Returns:
        what was fetched and what was passed over.

    Raises:
        SetpointError: if the run must not resume, the directory cannot be written, or nothing is
            whole at the URL or here.
        RemoteError: if the service does not answer, or cannot be written to, and there is nothing
            to resume from here.
    """
    section = job.checkpoint.remote
    if section is None or directory is None:
        return []
    problems = list(protocol_problems(job))
    if problems:
        raise ConfigError(problems)
    path = Path(directory)
    remote, reports = remote_of(section, path), list[Report]()

    def newer() -> Found | None:
        return _newer(remote, path / FOLDER, job, reports)

    found = world.on_main(newer)
    if found is not None:
        with opened(world, path):
            step = fetch_newest(world, remote, path / FOLDER, found, reports, show)
            if step is not None:
                world.on_main(lambda: _fetch_record(remote, path))

    def require_any() -> None:
        damaged = [report.note for report in reports if report.event == "damaged"]
        if damaged and newest_whole(path / FOLDER)[0] is None:
            # As for a run directory: starting again would bury what is left.
            raise RunError(
                f"no checkpoint at {remote.url} is whole ({'; '.join(damaged)}); to start over, "
                f"give the run another --name, or move these away"
            )

    world.on_main(require_any)
    if job.checkpoint.write and not list_checkpoints(path / FOLDER):
        # A run that has begun goes on while a service is away; a new one had better not begin.
        world.on_main(remote.require_writable)
    return reports


def would_fetch(job: Job, directory: str | Path | None) -> str | None:
    """Name what `bring_back` would fetch, and write nothing.

    Raises:
        SetpointError: as `bring_back` does.
    """
    section = job.checkpoint.remote
    if section is None or directory is None:
        return None
    path = Path(directory)
    remote = remote_of(section, path)
    found = _newer(remote, path / FOLDER, job, [])
    if found is None:
        return None
    return f"{directory_name(found.step)} would be fetched from {remote.url} first"


def fetch_newest(
    world: World,
    remote: RemoteRun,
    root: Path,
    first: Found,
    reports: list[Report],
    show: Callable[[str], None],
    than: int | None = None,
) -> int | None:
    """Fetch the newest whole checkpoint, and the best one, and let the pointers name them.

    Arguments:
        root: the folder of the checkpoints; its run is locked.
        first: the one to try first.
        reports: receives what was fetched, and what is damaged and was passed over.
        show: shows a line to people.

    Returns:
        its step; None if none newer than those here is whole.
    """
    found: Found | None = first
    passed: set[int] = set()
    while found is not None and not _fetch(world, remote, root, found, reports, show):
        passed.add(found.step)

        def next_one() -> Found | None:
            return _newer(remote, root, None, [], passed, than)

        found = world.on_main(next_one)
    if found is None:
        return None

    def best_one() -> Found | None:
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
        point(root, "latest", found.step)

    world.on_main(name_them)
    return found.step


def fetch_undamaged(run: Run, than: int | None) -> bool:
    """Fetch what is newer at the URL than the newest that is whole here, where some are damaged.

    Arguments:
        than: the step of that; None where none is whole.

    Returns:
        whether there is one.
    """
    section, world = run.job.checkpoint.remote, run.world
    if section is None:
        return False
    remote, root, reports = remote_of(section, run.directory), run.store.root, list[Report]()
    least = -1 if than is None else than
    found = world.on_main(lambda: _newer(remote, root, None, reports, (), least))
    if found is None:
        return False
    step = fetch_newest(world, remote, root, found, reports, run.progress.note, least)
    report_uploads(reports, run.events, run.progress)
    return step is not None


def _newer(
    remote: RemoteRun,
    root: Path,
    job: Job | None,
    reports: list[Report],
    passed: Collection[int] = (),
    than: int | None = None,
) -> Found | None:
    """The newest whole checkpoint at a URL, if it is newer than all here."""
    here, _ = newest_whole(root)
    here = here if than is None else than
    pending = read_pending(root)

    def on_damaged(name: str, reason: str) -> None:
        reports.append(_damage(remote, name, reason))

    def look() -> Found | None:
        reports.clear()
        for found in remote.wholes(on_damaged):
            if here is not None and found.step <= here:
                return None
            if found.step not in passed and (pending is None or found.step <= pending):
                return found
        return None

    try:
        found = repeated(look)
    except RemoteError as error:
        if here is None:
            raise RemoteError(
                f"{error}. Whether the run was trained elsewhere is not known; --checkpoint.remote "
                f"null begins it here"
            ) from error
        text = f"{error}. The run resumes from its own directory"
        reports.append(Report("fetch_failed", {"url": remote.url, "error": str(error)}, text))
        return None
    if found is not None and job is not None and job.checkpoint.resume == "never":
        raise SetpointError(
            f"checkpoint.resume = never, but {remote.url} holds checkpoints; choose another "
            f"--name, or --checkpoint.resume auto to resume"
        )
    return found


def _fetch(
    world: World,
    remote: RemoteRun,
    root: Path,
    found: Found,
    reports: list[Report],
    show: Callable[[str], None],
) -> bool:
    """Fetch a checkpoint, each rank its share of the files.

    Returns:
        False if it is damaged at the URL.
    """

    def begin() -> Path:
        with _writing(root):
            return begin_fetch(found, root)

    name, files = directory_name(found.step), found.manifest.files
    size = sum(each.size for each in files.values())
    show(f"fetching {name} from {remote.url} ({size / 1e6:.1f} MB)")
    folder = world.on_main(begin)
    refused: SetpointError | None = None
    try:
        with _writing(root):
            remote.download(found, sorted(files)[world.rank :: world.size], folder)
    except SetpointError as error:
        refused = error
    reason = refused.reason if isinstance(refused, DamagedCheckpoint) else None
    answers = world.all_of((None if refused is None else str(refused), reason))
    failed = [(text, why) for text, why in answers if text is not None]
    if not failed:

        def end() -> Path:
            with _writing(root):
                lost = [each for each in sorted(files) if not (folder / each).exists()]
                if lost:
                    raise SetpointError(
                        f"{lost[0]} of {name} was fetched by another rank, and is not in {folder}."
                        f"\nValid: a run directory that all ranks share"
                    )
                return end_fetch(found, folder)

        world.on_main(end)
        details = {"checkpoint": name, "url": remote.url, "bytes": size}
        reports.append(Report("fetch", details))
        return True
    if world.is_main:
        shutil.rmtree(folder, ignore_errors=True)
    for text, why in failed:
        if why is None:
            raise refused if refused is not None and reason is None else ToldByMain(text)
    reports.append(_damage(remote, name, failed[0][1] or ""))
    return False


def _damage(remote: RemoteRun, name: str, reason: str) -> Report:
    text = f"{name} at {remote.url} is corrupt and is skipped: {reason}"
    return Report("damaged", {"checkpoint": name, "url": remote.url, "reason": reason}, text)


def _fetch_record(remote: RemoteRun, path: Path) -> None:
    """Fetch the rows of metrics up to the checkpoint, and what is not here of the record."""
    with _writing(path):
        for name in RECORD:
            if name in ROWS or not (path / name).exists():
                repeated(partial(remote.download_record, name, path / name))
            elif name == EVENTS:
                _merge_events(remote, path / name)


def _merge_events(remote: RemoteRun, place: Path) -> None:
    """Put the events at a URL before those that are here alone.

    The chain of hashes, which was fetched, seals the ones; the next link seals the others.

    Raises:
        OSError: if the disk fails.
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
