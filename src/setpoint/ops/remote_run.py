"""The checkpoints of a run at a URL: sent file by file, the manifest last, and fetched again.

A URL holds what the run directory holds, so that any copy of it is a run directory:

<url>/<name of the run directory>/checkpoints/step-00000100/...
<url>/<name of the run directory>/checkpoints/latest, best
<url>/<name of the run directory>/config.json, metrics.jsonl, ...

A checkpoint without `manifest.json` does not count there, as it does not on a disk. One that the
run does not come from any more has its manifest under another name, and keeps its files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from setpoint.checkpoint.config import Remote
from setpoint.checkpoint.folder import POINTERS, PointerName, Retention, directory_name, step_of
from setpoint.checkpoint.manifest import (
    MANIFEST,
    STATE,
    DamagedCheckpoint,
    Manifest,
    decode_state,
    parse_manifest,
)
from setpoint.checkpoint.places import CHECKPOINTS
from setpoint.config import SetpointError
from setpoint.files.atomic import Written, replacing, write_file
from setpoint.ops.remote_folder import RemoteError, RemoteFolder, repeated

SET_ASIDE = f"{MANIFEST}.set-aside"
"""Name of the manifest of a checkpoint that the run does not come from any more."""

OnDamaged = Callable[[str, str], None]
"""Told of each damaged checkpoint that is passed over: its name and the reason."""


class RemoteCheckpoint(NamedTuple):
    """A checkpoint at a URL, whose manifest says that it is whole."""

    step: int
    manifest: Manifest
    text: bytes


class Sent(NamedTuple):
    """Result of an upload.

    Arguments:
        files, size: that were sent; those that were there already are not counted.
        by: how what arrived was compared: `md5`, as the service says it, the `digest` of what was
            read back, or `size`; of several the weakest.
    """

    files: int
    size: int
    by: str


class RemoteRun(RemoteFolder):
    """One run at a URL.

    Arguments:
        url: of the run, not of the folder of all runs.
        by_size, alive: see `RemoteFolder`.
    """

    def __init__(
        self, url: str, *, by_size: bool = False, alive: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(url, by_size=by_size, alive=alive)
        self._positions: dict[int, dict[str, float]] = {}

    def steps(self) -> list[int]:
        """The steps of all checkpoints, whole or not, oldest first.

        Those that `latest` and `best` name are among them even where a listing lags behind.

        Raises:
            RemoteError: if the service does not answer.
        """
        with self._asking():
            listed = {step_of(name) for name in self._names(f"{self._root}/{CHECKPOINTS}")}
        listed |= {self.pointer(name) for name in POINTERS}
        return sorted(step for step in listed if step is not None)

    def runs(self) -> list[str]:
        """The names of the folders at the URL that hold checkpoints, where it is one of runs.

        Raises:
            RemoteError: if the service does not answer.
        """
        with self._asking():
            names = sorted(set(self._names(self._root)) - {"", CHECKPOINTS})
            return [n for n in names if self._system.isdir(f"{self._root}/{n}/{CHECKPOINTS}")]

    def find(self, step: int) -> RemoteCheckpoint | None:
        """A checkpoint's manifest.

        Returns:
            None where there is none: the checkpoint is not whole.

        Raises:
            DamagedCheckpoint: if it is not what was written.
            RemoteError: if the service does not answer.
            SetpointError: if a newer Setpoint wrote it.
        """
        with self._asking():
            text = self._read(self._path(step, MANIFEST))
        if text is None:
            return None
        manifest = parse_manifest(Path(directory_name(step)), text)
        if manifest.step != step:
            raise DamagedCheckpoint(
                Path(directory_name(step)), f"its manifest is of step {manifest.step}"
            )
        return RemoteCheckpoint(step, manifest, text)

    def wholes(
        self, on_damaged: OnDamaged = lambda name, reason: None
    ) -> Iterator[RemoteCheckpoint]:
        """The checkpoints whose files are there in full length, newest first.

        Raises:
            RemoteError: if the service does not answer.
        """
        for step in reversed(self.steps()):
            try:
                found = self.find(step)
                if found is not None:
                    self._require_sizes(found)
                    yield found
            except DamagedCheckpoint as error:
                on_damaged(directory_name(step), error.reason)

    def sizes(self, step: int) -> dict[str, int]:
        """The files of a checkpoint by name, with their sizes in bytes.

        Raises:
            RemoteError: if the service does not answer.
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
        """When a checkpoint was completed, in seconds since 1970; None where a service keeps quiet.

        Raises:
            RemoteError: if the service does not answer.
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

    def verify(self, found: RemoteCheckpoint) -> None:
        """Compare every byte with its checksum; nothing is kept.

        Raises:
            DamagedCheckpoint: naming the file that is missing or differs.
            RemoteError: if the service does not answer.
        """
        for name, written in sorted(found.manifest.files.items()):
            with self._reading(found.step, name):
                arrived = self._digest(self._path(found.step, name))
            _compare(found.step, name, arrived, written)

    def pointer(self, name: PointerName) -> int | None:
        """The step that `latest` or `best` names; None without one, or where it names none."""
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
        """Make a checkpoint at the URL of one on the disk.

        Files that are there already, by size and checksum, are not sent again: what was cut off
        goes on here. `latest` and `best` move when it is whole.

        Arguments:
            manifest: of `directory`.
            record: files of the run that go with it, such as the rows of metrics.
            best: the step that `best` is to name if it is whole at the URL.

        Raises:
            DamagedCheckpoint: if a file in `directory` is not what its manifest says.
            OSError: if one cannot be read.
            Exception: what the service raises.
        """
        step, folder = manifest.step, self._path(manifest.step)
        self._system.invalidate_cache()
        text = manifest.render()
        there = self._read(self._path(step, MANIFEST))
        sent: list[tuple[int, str]] = []
        if there != text:
            if there is not None:
                self._remove(self._path(step, MANIFEST))
            if self._read(self._path(step, SET_ASIDE)) is not None:
                self._remove(self._path(step, SET_ASIDE))
            self._make_folder(folder)
            for name, written in sorted(manifest.files.items()):
                sent += self._send(directory / name, f"{folder}/{name}", written)
        sent += self.send_record(record)
        if there != text:
            self._write(self._path(step, MANIFEST), text)
        newest = self.pointer("latest")
        if newest is None or newest <= step or self.find(newest) is None:
            self._point("latest", step)
        if best is not None and self.pointer("best") != best and self.find(best) is not None:
            self._point("best", best)
        how = [by for _, by in sent]
        by = next((each for each in ("size", "digest", "md5") if each in how), "none")
        return Sent(len(sent), sum(size for size, _ in sent), by)

    def send_record(self, files: Sequence[Path]) -> list[tuple[int, str]]:
        """Send files of a run directory, each as long as it is now, where they have changed.

        Returns:
            size of each that was sent, and how it was compared.

        Raises:
            OSError: if one cannot be read.
            Exception: what the service raises.
        """
        sent: list[tuple[int, str]] = []
        for file in files:
            if file.is_file():
                self._make_folder(self._root)
                sent += self._send(file, f"{self._root}/{file.name}", None)
        return sent

    def set_aside_after(self, step: int) -> list[str]:
        """Let checkpoints count no more that a run which goes on from `step` does not come from.

        Their files stay; only the manifest gets another name. The pointers move first.

        Returns:
            their names.

        Raises:
            Exception: what the service raises.
        """
        self._system.invalidate_cache()
        texts = {each: self._read(self._path(each, MANIFEST)) for each in self.steps()}
        stay = [each for each, text in texts.items() if each <= step and text is not None]
        for name in POINTERS:
            named = self.pointer(name)
            if named is not None and named > step:
                if name == "latest" and stay:
                    self._point(name, stay[-1])
                else:
                    self._remove(f"{self._root}/{CHECKPOINTS}/{name}")
        gone: list[str] = []
        for each, text in texts.items():
            if each > step and text is not None:
                self._write(self._path(each, SET_ASIDE), text)
                self._remove(self._path(each, MANIFEST))
                gone.append(directory_name(each))
        return gone

    def distance(self, step: int, unit: str) -> float | None:
        """Position of the run at a checkpoint, in a unit of periods; None where it is not known.

        Raises:
            RemoteError: if the service does not answer.
        """
        if unit == "steps":
            return step
        if step not in self._positions:
            found = self.find(step)
            with self._asking():
                content = self._read(self._path(step, STATE))
            self._positions[step] = _position_in(content, found)
        return self._positions[step].get(unit)

    def reasons(self, rule: Retention) -> tuple[dict[int, list[str]], list[int]]:
        """Why each checkpoint stays, which may go without a reason; and which are not finished.

        What `latest` and `best` name stays, and so does what cannot be read.

        Raises:
            RemoteError: if the service does not answer.
        """
        protected: dict[int, str] = {}
        for name in POINTERS:
            step = self.pointer(name)
            if step is not None:
                protected[step] = f"{protected[step]}, {name}" if step in protected else name
        whole: list[int] = []
        unfinished: list[int] = []
        for step in self.steps():
            try:
                found = self.find(step)
            except SetpointError as error:
                if isinstance(error, RemoteError):
                    raise
                continue
            if found is not None:
                whole.append(step)
                continue
            with self._asking():
                if self._read(self._path(step, SET_ASIDE)) is None:
                    unfinished.append(step)
        return rule.reasons(whole, protected, self.distance), unfinished

    def prune(self, rule: Retention, waiting: Collection[int] = ()) -> list[str]:
        """Remove what has no reason to stay, and what uploads left that are never finished.

        Arguments:
            waiting: steps that are to be sent, whose files are left alone.

        Returns:
            the names of the checkpoints that were removed.

        Raises:
            Exception: what the service raises.
        """
        reasons, unfinished = self.reasons(rule)
        gone = [step for step, why in reasons.items() if not why]
        newest = max(reasons, default=-1)
        left = [each for each in unfinished if each < newest and each not in waiting]
        for step in (*gone, *left):
            # From here on it counts no more, and what is left of it goes with the next call.
            self._remove(self._path(step, MANIFEST))
            with suppress(FileNotFoundError):
                self._system.rm(self._path(step), recursive=True)
        return [directory_name(step) for step in gone]

    def download(self, found: RemoteCheckpoint, names: Collection[str], into: Path) -> None:
        """Fetch files of a checkpoint into a folder, and compare them with the manifest.

        Raises:
            DamagedCheckpoint: naming the file that is missing or differs.
            RemoteError: if the service does not answer.
            OSError: if the disk fails.
        """
        for name in sorted(names):
            expected = found.manifest.files[name]

            def fetch(name: str = name, expected: Written = expected) -> Written:
                (into / name).unlink(missing_ok=True)
                with self._reading(found.step, name):
                    pieces = self._pieces(self._path(found.step, name))
                    return write_file(into / name, pieces)

            _compare(found.step, name, repeated(fetch), expected)

    def download_record(self, name: str, path: Path) -> bool:
        """Fetch a file of the run, in place of one that is there.

        Returns:
            whether there is one at the URL.

        Raises:
            RemoteError: if the service does not answer.
            OSError: if the disk fails.
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

    def _require_sizes(self, found: RemoteCheckpoint) -> None:
        """Ask for each file, as a listing may lag behind."""
        sizes: dict[str, int] = {}
        with self._asking():
            for name in found.manifest.files:
                with suppress(FileNotFoundError):
                    sizes[name] = self._system.info(self._path(found.step, name)).get("size")
        if wrong := found.manifest.wrong_size(sizes):
            raise _damage(found.step, wrong)

    @contextmanager
    def _reading(self, step: int, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise _damage(step, f"{name} is missing") from error


def _damage(step: int, reason: str) -> DamagedCheckpoint:
    return DamagedCheckpoint(Path(directory_name(step)), reason)


def _compare(step: int, name: str, found: Written, expected: Written) -> None:
    if difference := found.difference(expected):
        raise _damage(step, f"{name} {difference}")


def _position_in(content: bytes | None, found: RemoteCheckpoint | None) -> dict[str, float]:
    """The position in a state, as it was written; nothing where that is not what is there."""
    expected = None if found is None else found.manifest.files.get(STATE)
    if content is None or expected is None or Written.of(content) != expected:
        return {}
    position = decode_state(content).get("position")
    return position if isinstance(position, dict) else {}


def remote_of(section: Remote, path: Path) -> RemoteRun:
    """URL that a run directory is uploaded to: a folder of its name.

    Raises:
        RemoteError: if the URL cannot be opened.
    """
    url = f"{section.url.rstrip('/')}/{path.resolve().name}"
    return RemoteRun(url, by_size=section.verify == "size")
