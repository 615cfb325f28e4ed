"""A run's checkpoints at a URL: uploads (with the manifest last), downloads and listing.

The URL has the layout of a run directory, so that any copy of it is a run directory:

<url>/<name of the run directory>/checkpoints/step-00000100/...
<url>/<name of the run directory>/checkpoints/latest, best
<url>/<name of the run directory>/config.json, metrics.jsonl, ...

A checkpoint without `manifest.json` is ignored there, as on a disk. If the run went back to an
earlier checkpoint, the manifests of abandoned ones are renamed, and their files are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from setpoint.checkpoint.config import Remote
from setpoint.checkpoint.folder import (
    POINTERS,
    PointerName,
    Retention,
    directory_name,
    names_of_steps,
    step_of,
)
from setpoint.checkpoint.manifest import (
    MANIFEST,
    DamagedCheckpoint,
    Manifest,
    parse_manifest,
)
from setpoint.checkpoint.places import (
    CHECKPOINTS,
    CheckpointEntry,
    FileComparison,
    reason_of,
    split_url,
)
from setpoint.config import SetpointError
from setpoint.files.atomic import Written, replacing, write_file
from setpoint.ops.remote_folder import RemoteError, RemoteFolder, repeated

SET_ASIDE = f"{MANIFEST}.set-aside"
"""Name of the manifest of an obsolete checkpoint, after a rollback."""


class RemoteCheckpoint(NamedTuple):
    """A complete checkpoint at a URL."""

    step: int
    manifest: Manifest
    text: bytes


class Sent(NamedTuple):
    """Result of an upload.

    Arguments:
        files, size: uploaded files and bytes; existing files are not counted.
        by: the weakest verification of its files: `md5` by the service, `digest` of the data read
            back, or `size`.
    """

    files: int
    size: int
    by: str


class RemoteRun(RemoteFolder):
    """One run at a URL.

    Arguments:
        url: the URL of the run, not of the folder of all runs.
        by_size, alive: see `RemoteFolder`.
    """

    def steps(self) -> list[int]:
        """The steps of all checkpoints, complete or not, ascending.

        The steps of `latest` and `best` are included even if a listing lags behind.

        Raises:
            RemoteError: the service does not answer.
        """
        with self._asking():
            listed = {step_of(name) for name in self._names(f"{self._root}/{CHECKPOINTS}")}
        listed |= {self.pointer(name) for name in POINTERS}
        return sorted(step for step in listed if step is not None)

    def runs(self) -> list[str]:
        """Names of folders with checkpoints, if the URL is a folder of runs.

        Raises:
            RemoteError: the service does not answer.
        """
        with self._asking():
            names = sorted(set(self._names(self._root)) - {"", CHECKPOINTS})
            return [n for n in names if self._system.isdir(f"{self._root}/{n}/{CHECKPOINTS}")]

    def find(self, step: int) -> RemoteCheckpoint | None:
        """The manifest of a checkpoint.

        Returns:
            None for an incomplete checkpoint.

        Raises:
            DamagedCheckpoint: the manifest differs from what was written.
            RemoteError: the service does not answer.
            SetpointError: a newer version of Setpoint wrote it.
        """
        with self._asking():
            text = self._read(self._path(step, MANIFEST))
        if text is None:
            return None
        manifest = parse_manifest(Path(directory_name(step)), text)
        if manifest.step != step:
            raise DamagedCheckpoint(
                Path(directory_name(step)), f"its manifest is for step {manifest.step}"
            )
        return RemoteCheckpoint(step, manifest, text)

    def complete_checkpoints(
        self, on_damaged: Callable[[str, str], None] = lambda name, reason: None
    ) -> Iterator[RemoteCheckpoint]:
        """The checkpoints with all files at full size, newest first.

        Arguments:
            on_damaged: called with the name of each damaged one that is skipped, and the reason.

        Raises:
            RemoteError: the service does not answer.
        """
        for step in reversed(self.steps()):
            try:
                checkpoint = self.find(step)
                if checkpoint is not None:
                    self._require_sizes(checkpoint)
                    yield checkpoint
            except DamagedCheckpoint as error:
                on_damaged(directory_name(step), error.reason)

    def sizes(self, step: int) -> dict[str, int]:
        """The files of a checkpoint by name, with their sizes in bytes.

        Raises:
            RemoteError: the service does not answer.
        """
        with self._asking():
            self._system.invalidate_cache()
            try:
                rows = self._system.ls(self._path(step), detail=True)
            except FileNotFoundError:
                return {}
        files = [row for row in rows if row.get("type") == "file"]
        return {str(row["name"]).rpartition("/")[2]: row["size"] for row in files}

    def written(self, step: int) -> float | None:
        """Time of completion in seconds since 1970; None if the service does not report it.

        Raises:
            RemoteError: the service does not answer.
        """
        with self._asking():
            self._system.invalidate_cache()
            try:
                info = self._system.info(self._path(step, MANIFEST))
            except FileNotFoundError:
                return None
        for name in ("mtime", "LastModified", "last_modified", "created"):
            moment = info.get(name)
            if isinstance(moment, datetime):
                return moment.timestamp()
            if isinstance(moment, float):
                return moment
        return None

    def verify(self, checkpoint: RemoteCheckpoint, names: Collection[str] | None = None) -> None:
        """Verify every byte of some files, without storing them.

        Arguments:
            names: the names of the files; None: all.

        Raises:
            DamagedCheckpoint: a file, named in the error, is missing or differs.
            RemoteError: the service does not answer.
        """
        files = checkpoint.manifest.files
        for name in sorted(files if names is None else names):
            with self._reading(checkpoint.step, name):
                arrived = self._digest(self._path(checkpoint.step, name))
            _compare(checkpoint.step, name, arrived, files[name])

    def pointer(self, name: PointerName) -> int | None:
        """The step of `latest` or `best`; None if missing or invalid."""
        with self._asking():
            content = self._read(f"{self._root}/{CHECKPOINTS}/{name}")
        return None if content is None else step_of(content.decode("utf-8", "replace").strip())

    def send(
        self,
        directory: Path,
        manifest: Manifest,
        record: Sequence[Path] = (),
        best: int | None = None,
    ) -> Sent:
        """Upload a checkpoint.

        Files that already exist (by size and checksum) are not uploaded again, so interrupted
        uploads continue. `latest` and `best` move once the checkpoint is complete.

        Arguments:
            manifest: the manifest of `directory`.
            record: further files of the run, such as metrics.
            best: the step for `best`, if its checkpoint is complete at the URL.

        Raises:
            DamagedCheckpoint: a file in `directory` does not match the manifest.
            OSError: a file cannot be read.
            Exception: any error of the service.
        """
        step, folder = manifest.step, self._path(manifest.step)
        self._system.invalidate_cache()
        text = manifest.render()
        stored = self._read(self._path(step, MANIFEST))
        sent: list[tuple[int, str]] = []
        if stored != text:
            if stored is not None:
                self._remove(self._path(step, MANIFEST))
            if self._read(self._path(step, SET_ASIDE)) is not None:
                self._remove(self._path(step, SET_ASIDE))
            self._make_folder(folder)
            for name, written in sorted(manifest.files.items()):
                sent += self._send(directory / name, f"{folder}/{name}", written)
        sent += self.send_record(record)
        if stored != text:
            self._write(self._path(step, MANIFEST), text)
        newest = self.pointer("latest")
        if newest is None or newest <= step or self.find(newest) is None:
            self._point("latest", step)
        if best is not None and self.pointer("best") != best and self.find(best) is not None:
            self._point("best", best)
        how = [by for _, by in sent]
        by = next((key for key in ("size", "digest", "md5") if key in how), "none")
        return Sent(len(sent), sum(size for size, _ in sent), by)

    def send_record(self, files: Sequence[Path]) -> list[tuple[int, str]]:
        """Upload changed files of a run directory, at their current length.

        Returns:
            size of each uploaded file, and its verification.

        Raises:
            OSError: a file cannot be read.
            Exception: any error of the service.
        """
        sent: list[tuple[int, str]] = []
        for file in files:
            if file.is_file():
                self._make_folder(self._root)
                sent += self._send(file, f"{self._root}/{file.name}", None)
        return sent

    def set_aside_after(self, step: int) -> list[str]:
        """Mark the checkpoints after `step` as obsolete, because the run continues from there.

        Their files are kept; only the manifest is renamed. The pointers move first.

        Returns:
            names of these checkpoints.

        Raises:
            Exception: any error of the service.
        """
        self._system.invalidate_cache()
        texts = {number: self._read(self._path(number, MANIFEST)) for number in self.steps()}
        stay = [number for number, text in texts.items() if number <= step and text is not None]
        for name in POINTERS:
            named = self.pointer(name)
            if named is not None and named > step:
                if name == "latest" and stay:
                    self._point(name, stay[-1])
                else:
                    self._remove(f"{self._root}/{CHECKPOINTS}/{name}")
        gone: list[str] = []
        for number, text in texts.items():
            if number > step and text is not None:
                self._write(self._path(number, SET_ASIDE), text)
                self._remove(self._path(number, MANIFEST))
                gone.append(directory_name(number))
        return gone

    def reasons(self, rule: Retention) -> tuple[dict[int, list[str]], list[int]]:
        """Reasons to keep each checkpoint, and the incomplete ones.

        Checkpoints named by `latest` and `best`, and unreadable ones, are kept.

        Raises:
            RemoteError: the service does not answer.
        """
        protected = names_of_steps({name: self.pointer(name) for name in POINTERS})
        complete: dict[int, Manifest] = {}
        unfinished: list[int] = []
        for step in self.steps():
            try:
                checkpoint = self.find(step)
            except SetpointError as error:
                if isinstance(error, RemoteError):
                    raise
                continue
            if checkpoint is not None:
                complete[step] = checkpoint.manifest
                continue
            with self._asking():
                if self._read(self._path(step, SET_ASIDE)) is None:
                    unfinished.append(step)

        def distance(step: int, unit: str) -> float | None:
            return complete[step].position.get(unit)

        return rule.reasons(complete, protected, distance), unfinished

    def prune(self, rule: Retention, waiting: Collection[int] = ()) -> list[str]:
        """Remove checkpoints without a reason to keep, and leftovers of abandoned uploads.

        Arguments:
            waiting: steps to upload, whose files are not touched.

        Returns:
            the names of the removed checkpoints.

        Raises:
            Exception: any error of the service.
        """
        reasons, unfinished = self.reasons(rule)
        gone = [step for step, why in reasons.items() if not why]
        newest = max(reasons, default=-1)
        left = [number for number in unfinished if number < newest and number not in waiting]
        for step in (*gone, *left):
            # It is invalid from here on, and the next call removes its remaining files.
            self._remove(self._path(step, MANIFEST))
            with suppress(FileNotFoundError):
                self._system.rm(self._path(step), recursive=True)
        return [directory_name(step) for step in gone]

    def download(self, checkpoint: RemoteCheckpoint, names: Collection[str], into: Path) -> None:
        """Download files of a checkpoint into a folder, and verify them.

        Raises:
            DamagedCheckpoint: a file, named in the error, is missing or differs.
            RemoteError: the service does not answer.
            OSError: the disk fails.
        """
        for name in sorted(names):
            expected = checkpoint.manifest.files[name]

            def fetch(name: str = name, expected: Written = expected) -> Written:
                (into / name).unlink(missing_ok=True)
                with self._reading(checkpoint.step, name):
                    pieces = self._pieces(self._path(checkpoint.step, name))
                    return write_file(into / name, pieces)

            _compare(checkpoint.step, name, repeated(fetch), expected)

    def download_record(self, name: str, path: Path) -> bool:
        """Download a file of the run, replacing the local one.

        Returns:
            whether it exists at the URL.

        Raises:
            RemoteError: the service does not answer.
            OSError: the disk fails.
        """

        def fetch() -> bool:
            try:
                with replacing(path, sync=True) as staged:
                    write_file(staged, self._pieces(f"{self._root}/{name}"))
            except FileNotFoundError:
                return False
            return True

        return repeated(fetch)

    def _point(self, name: PointerName, step: int) -> None:
        self._write(f"{self._root}/{CHECKPOINTS}/{name}", f"{directory_name(step)}\n".encode())

    def _path(self, step: int, name: str = "") -> str:
        folder = f"{self._root}/{CHECKPOINTS}/{directory_name(step)}"
        return f"{folder}/{name}" if name else folder

    def _require_sizes(self, checkpoint: RemoteCheckpoint) -> None:
        """Check the size of each file, because a listing may lag behind."""
        sizes: dict[str, int] = {}
        with self._asking():
            for name in checkpoint.manifest.files:
                with suppress(FileNotFoundError):
                    sizes[name] = self._system.info(self._path(checkpoint.step, name)).get("size")
        if wrong := checkpoint.manifest.wrong_size(sizes):
            raise _damage(checkpoint.step, wrong)

    @contextmanager
    def _reading(self, step: int, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise _damage(step, f"{name} is missing") from error


def _damage(step: int, reason: str) -> DamagedCheckpoint:
    return DamagedCheckpoint(Path(directory_name(step)), reason)


def _compare(step: int, name: str, actual: Written, expected: Written) -> None:
    if difference := actual.difference(expected):
        raise _damage(step, f"{name} {difference}")


def remote_of(section: Remote, path: Path) -> RemoteRun:
    """Upload URL of a run directory: a folder with the same name.

    Raises:
        RemoteError: the URL cannot be opened.
    """
    url = f"{section.url.rstrip('/')}/{path.resolve().name}"
    return RemoteRun(url, by_size=section.verify == "size")


class RemotePlace:
    """Checkpoints at a URL; `CheckpointPlace` is the same for a folder.

    Arguments:
        url: the URL of a run, of its checkpoints or of one of them, or of its `latest` or `best`.

    Raises:
        RemoteError: the service does not answer.
        SetpointError: a given pointer is invalid.
    """

    def __init__(self, url: str) -> None:
        run_url, selector = split_url(url)
        self.run = RemoteRun(run_url)
        self.root = f"{run_url}/{CHECKPOINTS}"
        self.only = self.run.pointer(selector) if isinstance(selector, str) else selector
        if selector is not None and self.only is None:
            raise SetpointError(f"there is no checkpoint {selector} at {self.root}")

    def survey(self) -> list[CheckpointEntry]:
        """List the checkpoints, by step.

        Raises:
            RemoteError: the service does not answer.
        """
        steps = self.run.steps() if self.only is None else [self.only]
        return [self._read_entry(step) for step in steps]

    def pointers(self) -> dict[PointerName, int | str | None]:
        """The step of each pointer, or the reason why it is broken."""
        targets: dict[PointerName, int | str | None] = {}
        for name in POINTERS:
            step = self.run.pointer(name)
            lost = step is not None and MANIFEST not in self.run.sizes(step)
            targets[name] = (
                f"{self.root}/{name} names step {step}, which is incomplete" if lost else step
            )
        return targets

    def compare(self, entry: CheckpointEntry) -> Iterator[FileComparison]:
        """Compare every byte of a checkpoint with its checksums, file by file.

        Raises:
            SetpointError: the manifest cannot be read.
        """
        checkpoint = self.run.find(entry.step)
        if checkpoint is None:
            raise SetpointError(f"{MANIFEST} is missing")
        for name, written in sorted(checkpoint.manifest.files.items()):
            try:
                self.run.verify(checkpoint, [name])
                problem = ""
            except SetpointError as error:
                problem = reason_of(error)
            yield FileComparison(name, written.size, problem)

    def is_gone(self, entry: CheckpointEntry) -> bool:
        """True if a checkpoint was removed meanwhile."""
        return not self.run.sizes(entry.step)

    def _read_entry(self, step: int) -> CheckpointEntry:
        sizes = self.run.sizes(step)
        kind = "checkpoint" if MANIFEST in sizes else "unfinished"
        manifest, damage = None, ""
        if kind == "checkpoint":
            try:
                checkpoint = self.run.find(step)
                manifest = None if checkpoint is None else checkpoint.manifest
            except SetpointError as error:
                damage = reason_of(error)
            if manifest is not None:
                damage = manifest.wrong_size(sizes)
        written = self.run.written(step) if kind == "checkpoint" else None
        return CheckpointEntry(
            Path(directory_name(step)),
            "set aside" if SET_ASIDE in sizes and kind != "checkpoint" else kind,
            step,
            written,
            sum(sizes.values()),
            manifest,
            damage,
        )
