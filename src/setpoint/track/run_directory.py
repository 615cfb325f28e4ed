"""The run directory: its files, its lock, and refusal of directories with other contents."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Self

from setpoint.config import (
    CONFIG,
    MINIMAL,
    ORIGINS,
    MissingPathError,
    Problem,
    RunError,
    SetpointError,
)
from setpoint.config.layers.presets import UnknownPreset
from setpoint.config.record.record import (
    NEW_ORIGINS,
    backup_name,
    recorded_schema,
    take_new_origins,
)
from setpoint.files import MANIFEST
from setpoint.files.atomic import read_json, write_json, write_text
from setpoint.files.lock import TRIES, RunLock, refuse_locked

from .config import ENVIRONMENT, MARK

FOLDERS = ("checkpoints", "logs", "traces")
"""Folders of every run directory."""

BAD_BATCHES = "bad-batches"
"""Folder of batches of skipped steps, created with the first."""

HEARTBEATS = "heartbeats"
"""Folder of one small file per rank."""

FILES = (
    CONFIG,
    MINIMAL,
    ORIGINS,
    NEW_ORIGINS,
    ENVIRONMENT,
    "metrics.jsonl",
    "events.jsonl",
    "chain.jsonl",
    "report.html",
    "labels.json",
    ".lock",
)
"""Files of a run directory; `.lock` names the writing process."""


class RunDirectory:
    """Directory of a run; made by `create`.

    Arguments:
        lock: lock held by this process; None for read-only use.
        is_new: whether no run was recorded there before.
        created: directories created for it, from the run directory upwards.
        before: other entries that existed before.
    """

    def __init__(
        self,
        path: Path,
        lock: RunLock | None,
        is_new: bool,
        created: Sequence[Path] = (),
        before: Collection[str] = (),
    ) -> None:
        self.path = path
        self.is_new = is_new
        self._lock: RunLock | None = lock
        self._made, self._before = created, before

    @classmethod
    def create(cls, path: Path | str) -> Self:
        """Create a run directory, or take over the directory of a run to continue, and lock it.

        Returns:
            the directory, locked until `close` or the end of the process.

        Raises:
            SetpointError: the directory has other contents or links to the outside, or is locked.
            RunError: the directory cannot be written. Nothing is written in these cases.
        """
        path = Path(path)
        for left in reversed(range(TRIES)):
            try:
                return cls._create(path)
            except SetpointError as error:
                # Another process withdraws it: create it again.
                if not left or not isinstance(error.__cause__, FileNotFoundError):
                    raise
        raise AssertionError

    @classmethod
    def _create(cls, path: Path) -> Self:
        created: list[Path] = []
        if _exists(path):
            _refuse_foreign(path)
            refuse_linked_folders(path)
        else:
            created += takewhile(lambda folder: not _exists(folder), (path, *path.parents))
            try:
                path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                _remove_empty(created)
                raise RunError(
                    f"run directory {path} cannot be created: {error.strerror}"
                ) from error
        try:
            lock = RunLock(path / ".lock")
        except SetpointError:
            _remove_empty(created)
            raise
        is_new = not (path / CONFIG).exists()
        before = {name for name in _within(path) if is_new} - {".lock" if lock.is_new else ""}
        run = cls(path, lock, is_new, created, before)
        try:
            for folder in FOLDERS:
                (path / folder).mkdir(exist_ok=True)
            for name in FILES:
                # Temporary files of a killed process.
                for staged in path.glob(f"{name}.tmp-*"):
                    staged.unlink()
            if not is_new:
                take_new_origins(str(path))
        except OSError as error:
            run.withdraw()
            raise RunError(
                f"run directory {path} cannot be written: {error.filename}: {error.strerror}"
            ) from error
        return run

    @classmethod
    def check(cls, path: Path | str) -> Self:
        """Make the same checks as `create`, but write nothing.

        Raises:
            SetpointError: as in `create`.
        """
        path = Path(path)
        exists = _exists(path)
        if exists:
            _refuse_foreign(path)
            refuse_linked_folders(path)
        above = path
        while not _exists(above):
            above = above.parent
        if not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
            verb = "written" if exists else "created"
            why = os.strerror(_why_not(above))
            raise RunError(f"run directory {path} cannot be {verb}: {above}: {why}")
        refuse_locked(path / ".lock")
        return cls(path, None, not (path / CONFIG).exists())

    @property
    def name(self) -> str:
        """The directory's own name, for titles and tables."""
        return self.path.resolve().name

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        """The folder of the processes' logs."""
        return self.path / "logs"

    @property
    def config(self) -> Path:
        """The resolved, complete configuration."""
        return self.path / CONFIG

    @property
    def metrics(self) -> Path:
        """The rows of metrics."""
        return self.path / "metrics.jsonl"

    @property
    def events(self) -> Path:
        """The event log: starts, resumes, saves and faults."""
        return self.path / "events.jsonl"

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file of the record atomically.

        Raises:
            RunError: the file cannot be written; its previous content is unchanged.
        """
        write_json(self._writable(name), value)

    def write_text(self, name: str, text: str) -> None:
        """Write a text file of the record atomically.

        Raises:
            RunError: the file cannot be written; its previous content is unchanged.
        """
        write_text(self._writable(name), text)

    def write_record(self, texts: Mapping[str, str], schema: int) -> None:
        """Write or replace the files of the recorded configuration.

        A kill leaves either the old or the new record: the origins wait in a separate file until
        `config.json` is replaced. The files of an older schema are kept as `config.schema-1.json`.

        Arguments:
            texts: the result of `record_files`.

        Raises:
            RunError: a file cannot be written.
        """
        before = recorded_schema(str(self.path))
        if before is not None and before != schema:
            for name in texts:
                backup = self.path / backup_name(name, before)
                if (self.path / name).exists() and not backup.exists():
                    write_text(backup, (self.path / name).read_text(encoding="utf-8"))
        origins = NEW_ORIGINS if self.config.exists() else ORIGINS
        self.write_text(origins, texts[ORIGINS])
        self.write_text(MINIMAL, texts[MINIMAL])
        self.write_text(CONFIG, texts[CONFIG])  # this makes it a run directory
        if origins != ORIGINS:
            try:
                os.replace(self.path / origins, self.path / ORIGINS)
            except OSError as error:
                place = self.path / ORIGINS
                raise RunError(f"{place} cannot be written: {error.strerror}") from error

    def withdraw(self) -> None:
        """Undo `create` if no run is recorded in the directory, and close it.

        For a refused first start, which leaves nothing new.
        """
        if self._lock is None:
            return
        if self.is_new and not self.config.exists():
            for _ in range(TRIES):  # another rank may write a last heartbeat at the same time
                new = [name for name in _within(self.path) if name not in (".lock", *self._before)]
                created = [name for name in new if _is_own(name.partition("/")[0])]
                if not created:
                    break
                for name in created:
                    with contextlib.suppress(OSError):
                        _remove(self.path / name)
            # Last, while it is locked: a waiting process sees that this one is gone.
            if ".lock" not in self._before:
                with contextlib.suppress(OSError):
                    self._lock.path.unlink()
        self.close()
        _remove_empty(self._made)

    def close(self) -> None:
        """Unlock the directory."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _writable(self, name: str) -> Path:
        if self._lock is None or name not in FILES:
            raise ValueError(f"{name} cannot be written: not locked, or not one of {FILES}")
        return self.path / name


def is_run_directory(path: Path) -> bool:
    """True if a directory contains a `config.json` and another file of a run's record.

    Directories of other programs, such as models, also contain a `config.json`, and checkpoints
    contain a copy of the record.
    """
    record_files = (ORIGINS, ENVIRONMENT, "events.jsonl", ".lock")
    # Unlike `Path.exists`, these accept names that are too long.
    return (
        os.path.isfile(path / CONFIG)
        and any(os.path.exists(path / name) for name in record_files)
        and not os.path.exists(path / MANIFEST)
    )


def not_a_run(
    path: str | os.PathLike[str],
    valid: str = "a directory created by `setpoint train`; `setpoint runs list` shows them",
) -> SetpointError:
    """The error for a path that is not a run directory; it names runs inside and around it."""
    folder = Path(path)
    if not os.path.exists(folder):
        return SetpointError(f"there is no run {path}\nValid: {valid}")
    try:
        runs = [inner for inner in folder.iterdir() if is_run_directory(inner)]
    except OSError:  # a file, or not readable
        runs = []
    missing = "record of a run" if (folder / CONFIG).is_file() else CONFIG
    reason = "but a checkpoint" if (folder / MANIFEST).is_file() else f"as it has no {missing}"
    reason = "but a folder of runs" if runs else reason
    runs = runs or [outer for outer in folder.parents if is_run_directory(outer)]
    names = [str(run) for run in sorted(runs, key=os.path.getmtime, reverse=True)]
    valid = ", ".join(names[:3]) + (" ..." if len(names) > 3 else "") if names else valid
    return SetpointError(f"{path} is not a run directory, {reason}\nValid: {valid}")


def no_run(source: str, error: SetpointError, also: str = "") -> SetpointError:
    """The error for a name that is neither a run nor a preset; any other error unchanged.

    Arguments:
        source: the name, which was opened as a preset or file.
        also: other valid inputs.
    """
    if not isinstance(error, UnknownPreset) or error.name != source:
        return error
    return SetpointError(
        f"there is no run and no preset {source!r}{error.elsewhere}.{error.meant}\nValid: a run "
        f"directory (`setpoint runs list`) or a preset (`setpoint list presets`){also}"
    )


def hint_of_start(run: Path, problem: Problem) -> str:
    """A sentence that names the folder in which a run was started; empty if that does not help.

    Arguments:
        problem: of a value in the record of the run.
    """
    value = str(problem.value).strip("'\"")
    if problem.kind != MissingPathError.kind or os.path.isabs(os.path.expanduser(value)):
        return ""
    try:
        folder = str(read_json(run / ENVIRONMENT)["directory"])
    except (OSError, ValueError, TypeError, KeyError, SetpointError):
        return ""
    same = os.path.realpath(folder) == os.path.realpath(os.curdir)
    return "" if same else f"The run was started in {folder}, where its relative paths begin."


def refuse_linked_folders(path: Path) -> None:
    """Refuse a run directory that contains links to folders outside of it.

    A run directory may come from another user, and such links would write or remove files
    elsewhere. The directory itself may be a link. Links to files are refused when they are written;
    trackers create links within `logs`.

    Raises:
        SetpointError: names the first such link.
    """
    try:
        link = next(links_out_of(path), None)
    except OSError as error:
        raise SetpointError(
            f"run directory {path} cannot be read: {error.filename}: {error.strerror}"
        ) from error
    if link is not None:
        raise SetpointError(
            f"run directory {path}: {os.path.relpath(link, path)} is a link to "
            f"{os.path.realpath(link)}, but a run writes only to its own folders.\nValid: a real "
            f"folder; to keep runs on another disk, set workspace to a folder there, or link "
            f"the whole run directory"
        )


def links_out_of(path: Path, only: str | None = None) -> Iterator[str]:
    """Folders in a directory, or only in one of its folders, that are links to the outside.

    Raises:
        OSError: a folder cannot be read.
    """
    root, folders = os.path.realpath(path), [str(path)]
    while folders:
        folder = folders.pop()
        with os.scandir(folder) as entries:
            inside = [item for item in entries if only in (None, item.name) or folder != str(path)]
        folders += [item.path for item in inside if item.is_dir(follow_symlinks=False)]
        links = [item.path for item in inside if item.is_symlink() and os.path.isdir(item)]
        for link in sorted(links):
            if os.path.commonpath((root, os.path.realpath(link))) != root:
                yield link


def _is_own(name: str) -> bool:
    """True if runs create entries with this name."""
    names = {*FILES, *FOLDERS, HEARTBEATS, BAD_BATCHES}
    return name.startswith(MARK) or name.partition(".tmp-")[0] in names


def _within(path: Path) -> list[str]:
    """All paths in a directory, depth first, without following links."""
    return [
        os.path.relpath(os.path.join(folder, name), path)
        for folder, folders, files in os.walk(path, topdown=False)
        for name in (*files, *folders)
    ]


def _remove(path: Path) -> None:
    """Remove a file, a link or an empty folder."""
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink()


def _remove_empty(folders: Iterable[Path]) -> None:
    with contextlib.suppress(OSError):  # others may have added files
        for folder in folders:
            folder.rmdir()


def _why_not(directory: Path) -> int:
    """The error that occurs when an entry is created in a directory, if any."""
    if not directory.is_dir():
        return errno.ENOTDIR
    read_only = os.statvfs(directory).f_flag & os.ST_RDONLY
    return errno.EROFS if read_only else errno.EACCES


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise SetpointError(f"run directory {path} cannot be read: {error.strerror}") from error


def _refuse_foreign(path: Path) -> None:
    """Refuse a directory with other contents, unless a start was killed or failed there."""
    if not path.is_dir():
        raise SetpointError(f"run directory {path} is a file; give a directory")
    try:
        names = {entry.name for entry in path.iterdir()}
    except OSError as error:
        raise SetpointError(f"run directory {path} cannot be read: {error.strerror}") from error
    if is_run_directory(path):
        return
    foreign = sorted(name for name in names if not _is_own(name))
    # A start that fails before the directory is open leaves only a log.
    is_log = names == {"logs"} and any((path / "logs").glob("rank-*.log"))
    if foreign or (names and ".lock" not in names and not is_log):
        shown = ", ".join(sorted(names)[:3]) + (" ..." if len(names) > 3 else "")
        raise SetpointError(
            f"{path} is not a run directory: it contains {shown}; give an empty directory, a new "
            f"one, or a run's"
        )
