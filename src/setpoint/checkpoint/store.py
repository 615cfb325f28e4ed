"""The checkpoints of one run: saved whole or not at all, found again after any crash."""

from __future__ import annotations

import errno
import math
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from setpoint.config import RunError, SetpointError
from setpoint.files.atomic import sync_directory
from setpoint.files.durable import Written, write_file
from setpoint.parallel.world import World
from setpoint.units import Period

from . import staging
from .folder import (
    MANIFEST,
    POINTERS,
    StagedPointer,
    UnreadPointer,
    clear_leftovers,
    damaged,
    directory_name,
    list_checkpoints,
    point,
    publish,
    read_pointer,
    readable_pointer,
    remove,
    temporary,
)
from .loading import Checkpoint, agree, load_directory, verify_directory
from .manifest import DamagedCheckpoint, Manifest, compare_sizes, read_manifest
from .retention import At, Positions, Retention, protected_by_pointers
from .staging import Tensors

OnDamaged = Callable[[Path, str], None]
"""Told of each damaged checkpoint that is passed over: its directory and the reason."""


OnSetAside = Callable[[Path, Path], None]
OnSealed = Callable[[int, bytes], None]


class CheckpointStore:
    """A directory of checkpoints with one writer and any number of readers.

    A save goes: stage the states, write aside and flush, rename, move `best` and `latest`, remove
    what is surplus. A process may die between any two of these; what it leaves is a store of whole
    checkpoints, and the next writer's `prepare` finishes or removes the rest. What is damaged or
    cannot be read is never removed, only set aside under another name: a disk that fails now may
    answer tomorrow.

    Arguments:
        root: the directory, `checkpoints/` of a run; made by the first save.
        keep, keep_every, keep_at: what stays, see `Retention`.
        keep_best: whether the checkpoint with the lowest metric is marked `best` and stays.
        on_set_aside: called with the old and the new path of each checkpoint that is set aside.
        on_sealed: called with the step and the text of the manifest of each checkpoint, once its
            files are on the disk and before any of it has its name.
        writes: False where nothing in the directory is to change, not even its leftovers.
    """

    def __init__(
        self,
        root: Path,
        *,
        keep: int | None = 2,
        keep_every: Period | None = None,
        keep_at: At = None,
        keep_best: bool = True,
        on_set_aside: OnSetAside | None = None,
        on_sealed: OnSealed | None = None,
        writes: bool = True,
    ) -> None:
        self.root = Path(root)
        self.on_set_aside = on_set_aside
        self.on_sealed = on_sealed
        self.committed: list[Callable[[int, Path], object]] = []
        """Called with the step and the directory of each checkpoint, once `latest` names it."""
        self.protections: list[Callable[[], Collection[int]]] = []
        """Give steps that are not to be removed yet, whatever `keep` says."""
        self.retention = Retention(keep, keep_every, keep_at)
        self.writes = writes
        self._positions = Positions(self.root)
        self.keep_best = keep_best
        self.world: World | None = None
        """Of the ranks that read the directory together; None: this process alone."""
        self._prepared = False

    @property
    def steps(self) -> list[int]:
        """The steps of the checkpoints in the directory, oldest first, whole or damaged."""
        return list(list_checkpoints(self.root))

    @property
    def latest(self) -> int | None:
        """The step that `latest` names; None without one, `SetpointError` if it is broken."""
        return read_pointer(self.root, "latest")

    @property
    def best(self) -> int | None:
        """The step that `best` names; None without one, `SetpointError` if it is broken."""
        return read_pointer(self.root, "best")

    def prepare(self) -> None:
        """Clean up after a writer that died, and finish a save that only lacked its pointers.

        Only the process that holds the run's lock may call this; it should, before it loads.

        Raises:
            SetpointError: if the directory cannot be written.
        """
        if self._prepared or not self.writes:
            return
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            sync_directory(self.root.parent)
            clear_leftovers(self.root)
            self._move_pointers_forward()
        except OSError as error:
            named = os.path.basename(error.filename2 or error.filename or "")
            at = f"{named}: " if named in POINTERS else ""
            raise SetpointError(
                f"the checkpoints in {self.root} cannot be written: {at}{error.strerror}"
            ) from error
        self._prepared = True

    def save(
        self,
        step: int,
        tensors: Tensors,
        state: Mapping[str, Any],
        metric: float | None = None,
        texts: Mapping[str, str | bytes] | None = None,
    ) -> Path:
        """Save a checkpoint; when this returns, it is on the disk and `latest` names it.

        Arguments:
            step: steps done; not below the newest checkpoint's.
            tensors: file stem to name to tensor; of each stem becomes `<stem>.safetensors`.
            state: everything else, as JSON has it (see `encode_state`).
            metric: what selects the best checkpoint, lower is better (what is to rise is negated);
                None or NaN never wins.
            texts: file name to content, such as the record of the configuration.

        Raises:
            RunError: if the disk is full or fails; `latest`, `best` and what they name are
                as before then, and what was written is removed.
        """
        folder = self.begin(step)
        with self.refusing(step, folder):
            files = staging.write(staging.stage(tensors, state), folder)
        return self.commit(step, folder, files, metric, texts)

    def begin(self, step: int) -> Path:
        """Make an empty folder for the files of a checkpoint; `commit` or `discard` ends it.

        Raises:
            RunError: if there are newer checkpoints, or the disk fails.
        """
        self.prepare()
        newest = max(self.steps, default=step)
        if newest > step:
            raise RunError(
                f"step {step} cannot be saved in {self.root}: it holds a checkpoint of step "
                f"{newest}, which belongs to another course of the run; call set_aside_after first"
            )
        folder = temporary(self.root, directory_name(step), os.getpid())
        with self.refusing(step, folder):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        return folder

    def commit(
        self,
        step: int,
        folder: Path,
        files: Mapping[str, Written],
        metric: float | None = None,
        texts: Mapping[str, str | bytes] | None = None,
    ) -> Path:
        """Make a checkpoint of a folder whose files are on the disk.

        Arguments:
            folder: that `begin` gave.
            files: size and checksum of what it holds.
            metric, texts: see `save`.

        Raises:
            RunError: see `save`.
        """
        if metric is None:
            # Saved again at one step (on Ctrl-C, say), a checkpoint keeps what was measured there.
            metric = self._metric_of(step)
        target = self.root / directory_name(step)
        pointers: list[StagedPointer] = []
        with self.refusing(step, folder, pointers):
            self._seal(folder, step, files, metric, texts or {})
            if self._beats_best(metric, step):
                pointers.append(StagedPointer(self.root, "best", step))
            pointers.append(StagedPointer(self.root, "latest", step))
            publish(folder, target)
            for pointer in pointers:
                pointer.move()
        for listener in self.committed:
            listener(step, target)
        try:
            self._prune()
        except OSError as error:
            raise RunError(
                f"the checkpoint of step {step} is saved, but an older one in {self.root} cannot "
                f"be removed: {error.strerror}"
            ) from error
        return target

    def discard(self, folder: Path) -> None:
        """Remove a folder that becomes no checkpoint."""
        shutil.rmtree(folder, ignore_errors=True)
        # If only pointers were missing, the next save first moves them.
        self._prepared = False

    @contextmanager
    def refusing(
        self, step: int, folder: Path, pointers: Sequence[StagedPointer] = ()
    ) -> Iterator[None]:
        """Remove what was written of a checkpoint that cannot be saved.

        Raises:
            RunError: what the disk said.
        """
        try:
            yield
        except BaseException as error:
            for pointer in pointers:
                pointer.discard()
            self.discard(folder)
            if isinstance(error, OSError):
                raise RunError(self.refusal(step, error)) from error
            raise

    def load(
        self, which: int | Literal["latest", "best"] = "latest", only: Collection[str] | None = None
    ) -> Checkpoint:
        """Load a checkpoint after comparing every byte with its checksum. Nothing is written.

        Arguments:
            which: a step; `latest` or `best`, what the pointer names.
            only: the file stems to verify and read, beside the state; None reads all.

        Raises:
            DamagedCheckpoint: if it is damaged, naming the file.
            RunError: if a file cannot be read.
            SetpointError: if there is none of that name.
        """
        step = read_pointer(self.root, which) if isinstance(which, str) else which
        found = list_checkpoints(self.root)
        if step is None or step not in found:
            asked = f"step {which}" if isinstance(which, int) else str(which)
            reason = "" if step is None or isinstance(which, int) else f" (step {step})"
            have = ", ".join(str(s) for s in found) or "none"
            raise SetpointError(
                f"there is no checkpoint {asked}{reason} in {self.root}; steps there: {have}"
            )
        return load_directory(found[step], only, self.world)

    def load_newest(
        self, on_damaged: OnDamaged | None = None, only: Collection[str] | None = None
    ) -> Checkpoint | None:
        """Load the newest whole checkpoint; None without any.

        Arguments:
            on_damaged: called with each damaged checkpoint that is passed over.
            only: see `load`.

        Raises:
            RunError: if there are damaged ones only, or a file cannot be read.
        """
        reasons: list[str] = []
        for directory in reversed(list_checkpoints(self.root).values()):
            found: Checkpoint | None = None
            refused: SetpointError | None = None
            try:
                found = load_directory(directory, only, self.world)
            except SetpointError as error:
                refused = error
            try:
                agree(self.world, refused)
                return found
            except DamagedCheckpoint as error:
                reasons.append(f"{error.path.name}: {error.reason}")
                if on_damaged is not None:
                    on_damaged(error.path, error.reason)
        if reasons:
            # Starting again from nothing would bury what is left; that is the user's to decide.
            raise RunError(
                f"no checkpoint in {self.root} is whole ({'; '.join(reasons)}); "
                "to start over, train into another run directory or move these away"
            )
        return None

    def forget_best(self) -> None:
        """Let the next checkpoint with a metric be the best, whatever the metric is.

        Raises:
            SetpointError: if the directory cannot be written.
        """
        if not self.writes:
            return
        self.prepare()
        try:
            point(self.root, "best", None)
        except OSError as error:
            raise SetpointError(
                f"the pointer to the best checkpoint in {self.root} cannot be removed: "
                f"{error.strerror}"
            ) from error

    def set_aside_after(self, step: int) -> None:
        """Rename the checkpoints that a run which goes on from `step` does not come from.

        Call it after loading and before training, so that a checkpoint that `auto` skipped is
        not mistaken for a newer state of this run. The pointers move before each of them.

        Arguments:
            step: the newest that keeps its name; -1 sets all aside.

        Raises:
            RunError: if they cannot be renamed.
        """
        if not self.writes:
            return
        self.prepare()
        found = list_checkpoints(self.root)
        try:
            # One by one, and `latest` first, so that what a crash leaves is the store before or
            # after one of them: `prepare` lets both pointers name again what is newer than it.
            for s in sorted((s for s in found if s > step), reverse=True):
                stay = [other for other in found if other < s]
                point(self.root, "latest", stay[-1] if stay else None)
                self._name_best_before(s, stay)
                self._set_aside(found[s], s)
            self._name_best_before(step + 1, [s for s in found if s <= step])
        except OSError as error:
            raise RunError(
                f"the checkpoints in {self.root} cannot be renamed: {error.strerror}"
            ) from error

    def _name_best_before(self, step: int, stay: Sequence[int]) -> None:
        """Where the best is of this step or later, let the best of those that stay be it."""
        best = readable_pointer(self.root, "best")
        if best is not None and best >= step:
            measured = [(self._metric_of(s), s) for s in stay]
            ranked = sorted((m, s) for m, s in measured if m is not None and not math.isnan(m))
            point(self.root, "best", ranked[0][1] if ranked else None)

    def _set_aside(self, directory: Path, step: int) -> None:
        place = damaged(self.root, directory_name(step))
        os.rename(directory, place)
        sync_directory(self.root)
        if self.on_set_aside is not None:
            self.on_set_aside(directory, place)

    def _seal(
        self,
        directory: Path,
        step: int,
        files: Mapping[str, Written],
        metric: float | None,
        texts: Mapping[str, str | bytes],
    ) -> None:
        """Write what is the same in any format; last the manifest, without which nothing counts."""
        files = dict(files)
        for name, text in texts.items():
            content = text if isinstance(text, bytes) else text.encode()
            files[name] = write_file(directory / name, [content])
        metric = None if metric is None else float(metric)
        manifest = Manifest(step, metric, files).render()
        write_file(directory / MANIFEST, [manifest])
        sync_directory(directory)
        if self.on_sealed is not None:
            self.on_sealed(step, manifest)

    def _move_pointers_forward(self) -> None:
        """Do for the newest checkpoint what its own save was killed before doing."""
        found = list_checkpoints(self.root)
        latest = readable_pointer(self.root, "latest")
        newer = [s for s in found if latest is None or s > latest]
        for step in newer:
            try:
                metric = verify_directory(found[step])
            except DamagedCheckpoint:
                continue
            if self._beats_best(metric, step):
                point(self.root, "best", step)
            point(self.root, "latest", step)

    def _beats_best(self, metric: float | None, step: int) -> bool:
        if not self.keep_best or metric is None or math.isnan(metric):
            return False
        try:
            best = read_pointer(self.root, "best")
        except UnreadPointer:
            return False
        except SetpointError:
            return True
        # Saved again at the same step, the best must prove itself against nothing but itself.
        if best is None or best == step:
            return True
        directory = list_checkpoints(self.root).get(best)
        if directory is None:
            return True
        try:
            record = read_manifest(directory).metric
        except DamagedCheckpoint:
            self._set_aside(directory, best)
            return True
        return record is None or metric < record

    def _metric_of(self, step: int) -> float | None:
        directory = list_checkpoints(self.root).get(step)
        try:
            return None if directory is None else read_manifest(directory).metric
        except DamagedCheckpoint:
            return None

    def _prune(self) -> None:
        protected = protected_by_pointers(self.root)
        if protected is None:
            return
        for step in (step for protection in self.protections for step in protection()):
            protected.setdefault(step, "protected")
        found = list_checkpoints(self.root)
        reasons = self.retention.reasons(found, protected, self._positions.distance)
        for step in (step for step, why in reasons.items() if not why):
            try:
                compare_sizes(found[step], read_manifest(found[step]))
            except SetpointError:
                self._set_aside(found[step], step)
            else:
                remove(found[step], directory_name(step))

    def refusal(self, step: int, error: OSError) -> str:
        """What is said of a save that a disk has refused."""
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        hint = ". Free some space, or keep fewer with checkpoint.keep" if full else ""
        return self.not_saved(step, error.strerror or repr(error)) + hint

    def not_saved(self, step: int, why: str) -> str:
        """What is said of a save that comes to nothing."""
        latest = readable_pointer(self.root, "latest")
        before = "there was none before it" if latest is None else f"step {latest} is still there"
        return f"the checkpoint of step {step} could not be saved in {self.root}: {why}; {before}"
