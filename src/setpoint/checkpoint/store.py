"""The checkpoints of a run: each is complete or absent, whatever fails."""

from __future__ import annotations

import errno
import math
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from setpoint.config import RunError, SetpointError
from setpoint.files.atomic import Written, sync_directory, write_file
from setpoint.files.threads import Worker
from setpoint.memory.usage import is_out_of_memory
from setpoint.parallel.process_group import first_line
from setpoint.parallel.world import RemoteRankError, World, described
from setpoint.units import Period

from . import staging
from .folder import (
    POINTERS,
    At,
    Retention,
    StagedPointer,
    UnreadPointer,
    clear_leftovers,
    damaged,
    directory_name,
    list_checkpoints,
    point,
    protected_by_pointers,
    publish,
    read_pointer,
    readable_pointer,
    remove,
    temporary,
)
from .loading import LoadedCheckpoint, agree, load_directory, verify_directory
from .manifest import MANIFEST, DamagedCheckpoint, Manifest, compare_sizes, read_manifest
from .places import format_newest
from .staging import HostMemory, OnSaved, Save, Tensors

OnDamaged = Callable[[Path, str], None]
"""Called with the directory of each damaged checkpoint that is skipped, and the reason."""
OnSetAside = Callable[[Path, Path], None]


class CheckpointStore:
    """A directory of checkpoints: one writer, a run's main rank, and any number of readers.

    Every rank must call every method, with the same result or error. Each rank writes its share of
    the tensors, and the main rank also writes the other files. A save stages the states, writes and
    flushes a temporary folder, renames it, moves `best` and `latest`, and prunes. After a crash
    between any two of these steps, all checkpoints are complete, and the next writer's `prepare`
    finishes or removes the rest. A damaged or unreadable checkpoint is never removed, only renamed,
    because the disk may recover.

    A save in the background returns once the states are copied to host memory, except unchanged
    ones, or raises the error of an earlier save. The threads of all ranks use a separate process
    group. All ranks have the same pending saves, and learn of their end at the same point of the
    run: in `poll`, `wait`, or a save beyond `in_flight`.

    Arguments:
        root: the directory, `checkpoints/` of a run; created by the first save.
        world: the ranks that share the directory; None: only this process.
        in_flight: maximum number of pending saves in the background; 0: saves are synchronous.
        pinned: whether background saves copy tensors to page-locked memory.
        timeout: timeout for collectives of the background threads, in seconds.
        keep, keep_every, keep_at: retention, see `Retention`.
        keep_best: whether the checkpoint with the lowest metric is marked `best` and kept.
        on_set_aside: called with the old and the new path of each checkpoint that is set aside.
        writes: False for a read-only store, which leaves leftovers alone, too.
    """

    def __init__(
        self,
        root: Path,
        world: World | None = None,
        *,
        in_flight: int = 0,
        pinned: bool = False,
        timeout: float = 0.0,
        keep: int | None = 2,
        keep_every: Period | None = None,
        keep_at: At = None,
        keep_best: bool = True,
        on_set_aside: OnSetAside | None = None,
        writes: bool = True,
    ) -> None:
        self.root = Path(root)
        self.world = world or World(torch.device("cpu"))
        self.in_flight, self.pinned = in_flight, pinned
        self.retention = Retention(keep, keep_every, keep_at)
        self.keep_best = keep_best
        self.on_set_aside, self.writes = on_set_aside, writes
        self.texts: list[Callable[[], Mapping[str, str]]] = []
        """Functions that return further files of each checkpoint, by name."""
        self.sealed: list[Callable[[int, bytes], object]] = []
        """Called with the step and the manifest text of each checkpoint, after its files are
        flushed and before it is renamed."""
        self.committed: list[Callable[[int, Path], object]] = []
        """Called with the step and the directory of each checkpoint, after `latest` was moved."""
        self.protections: list[Callable[[], Collection[int]]] = []
        """Functions that return steps to keep in any case."""
        self._writers = (
            self.world.with_own_group("checkpoint", timeout) if in_flight else self.world
        )
        self._thread = Worker("setpoint-checkpoint")
        self._pending: deque[Save] = deque()
        self._free: list[HostMemory] = []
        self._positions: dict[int, Mapping[str, float]] = {}
        self._prepared = False

    @property
    def steps(self) -> list[int]:
        """The steps of the checkpoints, ascending, valid or damaged."""
        return list(list_checkpoints(self.root))

    @property
    def is_writing(self) -> bool:
        """True while a save is pending."""
        return any(not save.written.done() for save in tuple(self._pending))

    def prepare(self) -> None:
        """Clean up after a killed writer, and complete a save that lacked only its pointers.

        All ranks must call it before loading; the main rank, which has the run's lock, does the
        work. Saves clean up only after their own process: one that the run has stopped waiting for
        may still try to when another process has the lock.

        Raises:
            SetpointError: the directory cannot be written.
        """
        self.world.on_main(lambda: self._prepare(own_only=False))

    def save(
        self,
        step: int,
        tensors: Tensors,
        state: Mapping[str, Any],
        metric: float | None = None,
        texts: Mapping[str, str | bytes] | None = None,
        on_saved: OnSaved | None = None,
        unchanged: Iterable[Tensor] = (),
    ) -> Path:
        """Save a checkpoint, which is complete once all ranks have written.

        Arguments:
            step: number of completed steps; not lower than that of the newest checkpoint.
            tensors: tensors by file stem and name.
            state: everything else, as JSON (see `encode_state`); its `position` is also in the
                manifest.
            metric: the metric that selects the best checkpoint, lower is better (negated if higher
                is better); with None or NaN the checkpoint is never the best.
            texts: file name to content, such as the record of the configuration.
            on_saved: called with the directory once `latest` has moved.
            unchanged: tensors that stay unchanged until this rank calls `finish_copies`.

        Returns:
            the directory, which does not exist yet if it is written in the background.

        Raises:
            RunError: the disk is full or fails, now or for an earlier save in the background;
                `latest`, `best` and their checkpoints are unchanged, and the files written are
                removed.
        """
        if not self.in_flight:
            # The tensors do not change before they are written.
            save = self._stage(Save(step, metric, texts), tensors, state)
            path = self._write(save, self.world)
            if on_saved is not None:
                on_saved(path)
            return path
        while len(self._pending) >= self.in_flight:
            self._finish()
        memory = self._free.pop() if self._free else HostMemory(self.pinned)
        memory.clear(unchanged)
        save = self._stage(Save(step, metric, texts, on_saved, memory), tensors, state)

        def write() -> Path:
            save.finish_copies()
            return self._write(save, self._writers)

        save.written = self._thread.submit(write)
        self._pending.append(save)
        return self.root / directory_name(step)

    def finish_copies(self) -> None:
        """Finish the copies of `unchanged` tensors, which may change afterwards."""
        for save in self._pending:
            save.finish_copies()

    def poll(self) -> bool:
        """Handle saves that have ended; all ranks must call it at the same point of the run.

        Returns:
            True while other saves are pending.

        Raises:
            RunError: a save has failed, as raised by `save`.
        """
        while self._pending:
            written = self._pending[0].written
            if self.world.any(not written.done()):
                return True
            self._finish()
        return False

    def wait(self, timeout: float | None = None) -> None:
        """Wait for all pending saves.

        Arguments:
            timeout: the limit in seconds; None: unlimited.

        Raises:
            RunError: a save has failed or timed out.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while self._pending:
            ended = self._pending[0].wait(until)
            if self.world.any(not ended):
                raise self._give_up(timeout)
            self._finish()

    def close(self, timeout: float | None = None) -> list[tuple[int, str]]:
        """Wait for pending saves after a failed run in which other ranks may be gone.

        Returns:
            steps that could not be saved, with the reasons.
        """
        failed: list[tuple[int, str]] = []
        until = None if timeout is None else time.monotonic() + timeout
        while self._pending:
            save = self._pending[0]
            try:
                if not save.wait(until):
                    raise self._give_up(timeout)
                self._finish()
            except Exception as error:
                text = str(error)
                if not isinstance(error, SetpointError):
                    text = self._not_saved(save.step, first_line(error) or repr(error))
                failed.append((save.step, text))
        self._thread.end()
        return failed

    def load_newest(self, on_damaged: OnDamaged | None = None) -> LoadedCheckpoint | None:
        """Load the newest valid checkpoint, or None; returns once all ranks have read it.

        Arguments:
            on_damaged: called with each damaged checkpoint that is skipped.

        Raises:
            RunError: all checkpoints are damaged, or a file cannot be read.
            SetpointError: the ranks do not see the same checkpoints.
        """
        self.wait()
        steps = self.world.all_of(self.steps)
        if any(rank_steps != steps[0] for rank_steps in steps):
            newest = ", ".join(str(max(rank_steps, default=None)) for rank_steps in steps)
            raise SetpointError(
                f"the ranks do not see the same checkpoints in {self.root}: the newest is of step "
                f"{newest} on ranks 0 to {len(steps) - 1}.\nValid: a run directory that all ranks "
                f"share"
            )
        reasons: list[str] = []
        for directory in reversed(list_checkpoints(self.root).values()):
            checkpoint: LoadedCheckpoint | None = None
            refused: SetpointError | None = None
            try:
                checkpoint = load_directory(directory, world=self.world)
            except SetpointError as error:
                refused = error
            try:
                agree(self.world, refused)
                return checkpoint
            except DamagedCheckpoint as error:
                reasons.append(f"{error.path.name}: {error.reason}")
                if on_damaged is not None:
                    on_damaged(error.path, error.reason)
        if reasons:
            # Starting over would hide the damaged checkpoints; leave that decision to the user.
            raise RunError(
                f"no checkpoint in {self.root} is complete ({'; '.join(reasons)}); "
                "to start over, train into another run directory or move these away"
            )
        return None

    def forget_best(self) -> None:
        """Reset the best checkpoint; the next one with a metric becomes the best.

        Raises:
            RunError: the directory cannot be written.
        """

        def forget() -> None:
            self._prepare()
            try:
                point(self.root, "best", None)
            except OSError as error:
                raise RunError(
                    f"the pointer to the best checkpoint in {self.root} cannot be removed: "
                    f"{error.strerror}"
                ) from error

        if self.writes:
            self.wait()
            self.world.on_main(forget)

    def set_aside_after(self, step: int) -> None:
        """Set aside the checkpoints after `step` if the run continues from there.

        Call it after loading and before training, so that a skipped checkpoint is not mistaken for
        a newer state of this run. The pointers move before each rename.

        Arguments:
            step: the newest step to keep; -1 sets all aside.

        Raises:
            RunError: the checkpoints cannot be renamed.
        """

        def rename() -> None:
            self._prepare()
            checkpoints = list_checkpoints(self.root)
            try:
                # One by one, and `latest` first, so that a crash leaves the store as before or
                # after one of them: `prepare` moves both pointers back to newer checkpoints.
                for s in sorted((s for s in checkpoints if s > step), reverse=True):
                    stay = [other for other in checkpoints if other < s]
                    point(self.root, "latest", stay[-1] if stay else None)
                    self._name_best_before(s, stay)
                    self._set_aside(checkpoints[s], s)
                self._name_best_before(step + 1, [s for s in checkpoints if s <= step])
            except OSError as error:
                raise RunError(
                    f"the checkpoints in {self.root} cannot be renamed: {error.strerror}"
                ) from error

        if self.writes:
            self.wait()
            self.world.on_main(rename)

    def _stage(self, save: Save, tensors: Tensors, state: Mapping[str, Any]) -> Save:
        """Assign shares to the ranks, and stage this rank's share."""
        share, index = staging.share_of(self.world, tensors)
        save.position = state.get("position", {})
        save.size = sum(tensor.nbytes for named in share.values() for tensor in named.values())
        try:
            save.files = staging.stage(share, state, save.memory, self.world, index)
        except Exception as error:  # the other ranks wait for the result
            if self.world.size == 1:
                problem = self._in_words(save, error)
                raise problem from problem.__cause__
            save.refused = error
        return save

    def _write(self, save: Save, world: World) -> Path:
        """Write the shares of all ranks, and commit or discard the checkpoint.

        Arguments:
            world: all ranks; a thread needs a separate process group.

        Raises:
            RunError: a disk error of any rank.
        """
        folder = world.on_main(lambda: self._begin(save.step))
        written: dict[str, Written] = {}
        refused = save.refused
        if refused is None:
            try:
                written = staging.write(save.files, folder)
            except Exception as error:
                refused = error
            except BaseException:
                if world.is_main:
                    self._discard(folder)
                raise
        refused = refused and self._in_words(save, refused)
        answers = world.all_of((written, None if refused is None else described(refused)))
        files: dict[str, Written] = {}
        for rank, (some, text) in enumerate(answers):
            if text is None:
                files.update(some)
                continue
            if world.is_main:
                self._discard(folder)
            if rank != world.rank:
                raise RemoteRankError(f"rank {rank}: {text}", RunError.status)
            assert refused is not None
            if world.size == 1:
                raise refused
            raise RunError(f"rank {rank}: {text}") from refused

        def commit() -> Path:
            if save.refused is not None:  # the run has stopped waiting
                self._discard(folder)
                raise save.refused
            return self._commit(save, folder, files)

        return world.on_main(commit)

    def _finish(self) -> None:
        """Wait for the oldest save, and handle its result."""
        save = self._pending[0]
        wait([save.written])  # Ctrl-C leaves it pending
        self._pending.popleft()
        path = save.written.result()
        if save.memory is not None:
            self._free.append(save.memory)
        if save.on_saved is not None:
            save.on_saved(path)

    def _give_up(self, timeout: float | None) -> RunError:
        """Cancel all pending saves, after a timeout."""
        error = RunError(
            f"the checkpoint of step {self._pending[0].step} was not written within "
            f"checkpoint.wait_timeout = {timeout:g} s and is abandoned: the disk of {self.root} "
            f"is too slow, or hangs. {format_newest(self.root)}"
        )
        for save in self._pending:
            save.refused = error
        self._pending.clear()
        return error

    # The following methods run on the main rank only.

    def _prepare(self, own_only: bool = True) -> None:
        if self._prepared or not self.writes:
            return
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            sync_directory(self.root.parent)
            clear_leftovers(self.root, own_only)
            self._move_pointers_forward()
        except OSError as error:
            named = os.path.basename(error.filename2 or error.filename or "")
            place = f"{named}: " if named in POINTERS else ""
            raise RunError(
                f"the checkpoints in {self.root} cannot be written: {place}{error.strerror}"
            ) from error
        self._prepared = True

    def _begin(self, step: int) -> Path:
        """Create the temporary folder of a checkpoint, for `_commit` or `_discard`.

        Raises:
            RunError: there are newer checkpoints, or the disk fails.
        """
        self._prepare()
        newest = max(self.steps, default=step)
        if newest > step:
            raise RunError(
                f"step {step} cannot be saved in {self.root}: it contains a checkpoint of step "
                f"{newest} from before the run was rolled back; call set_aside_after first"
            )
        folder = temporary(self.root, directory_name(step))
        with self._discarding(step, folder):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        return folder

    def _commit(self, save: Save, folder: Path, files: dict[str, Written]) -> Path:
        """Turn a folder of flushed files into a checkpoint.

        Arguments:
            files: size and checksum of its files.
        """
        step, metric = save.step, save.metric
        if metric is None:
            # A checkpoint saved again at the same step (on Ctrl-C, say) keeps its metric.
            metric = self._metric_of(step)
        target = self.root / directory_name(step)
        pointers: list[StagedPointer] = []
        with self._discarding(step, folder, pointers):
            texts = dict(save.texts or {})
            for further in self.texts:
                texts.update(further())
            for name, text in texts.items():
                content = text if isinstance(text, bytes) else text.encode()
                files[name] = write_file(folder / name, [content])
            # The manifest is written last: a folder without it is not a checkpoint.
            metric = None if metric is None else float(metric)
            manifest = Manifest(step, metric, files, save.position).render()
            write_file(folder / MANIFEST, [manifest])
            sync_directory(folder)
            for listener in self.sealed:
                listener(step, manifest)
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

    def _discard(self, folder: Path) -> None:
        """Remove the folder of a failed save."""
        shutil.rmtree(folder, ignore_errors=True)
        # If only the pointers were missing, the next save moves them first.
        self._prepared = False

    @contextmanager
    def _discarding(
        self, step: int, folder: Path, pointers: Sequence[StagedPointer] = ()
    ) -> Iterator[None]:
        """Clean up if the block fails.

        Raises:
            RunError: replaces an `OSError`.
        """
        try:
            yield
        except BaseException as error:
            for pointer in pointers:
                pointer.discard()
            self._discard(folder)
            if isinstance(error, OSError):
                raise RunError(self._refusal(step, error)) from error
            raise

    def _name_best_before(self, step: int, stay: Sequence[int]) -> None:
        """Move `best` to the best of the steps `stay` if it points to `step` or a later one."""
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

    def _move_pointers_forward(self) -> None:
        """Move the pointers for checkpoints whose save was killed before doing so."""
        checkpoints = list_checkpoints(self.root)
        latest = readable_pointer(self.root, "latest")
        newer = [s for s in checkpoints if latest is None or s > latest]
        for step in newer:
            try:
                metric = verify_directory(checkpoints[step])
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
        # Saved again at the same step, the best is not compared with itself.
        if best is None or best == step:
            return True
        record = self._metric_of(best)
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
        checkpoints = list_checkpoints(self.root)

        def distance(step: int, unit: str) -> float | None:
            if step not in self._positions:
                try:
                    self._positions[step] = read_manifest(checkpoints[step]).position
                except SetpointError:
                    return None
            return self._positions[step].get(unit)

        reasons = self.retention.reasons(checkpoints, protected, distance)
        for step in (step for step, why in reasons.items() if not why):
            try:
                compare_sizes(checkpoints[step], read_manifest(checkpoints[step]))
            except SetpointError:
                self._set_aside(checkpoints[step], step)
            else:
                remove(checkpoints[step], directory_name(step))

    def _in_words(self, save: Save, error: Exception) -> Exception:
        """The error of a failed save; a full disk or memory is described in a sentence."""
        if isinstance(error, OSError):
            problem = RunError(self._refusal(save.step, error))
        elif is_out_of_memory(error):
            if save.memory is None:
                why = "there is not enough host memory to write it"
                helps = "less data in memory, or fewer ranks per machine"
            else:
                why = (
                    f"there is not enough host memory for its copy, which needs "
                    f"{save.size / 1e6:,.1f} MB on this rank"
                )
                fewer = f", or fewer than checkpoint.in_flight = {self.in_flight} of them"
                helps = "checkpoint.mode = sync, which copies one tensor at a time"
                helps += fewer * (self.in_flight > 1)
            problem = RunError(f"{self._not_saved(save.step, why)}. What helps: {helps}")
        else:
            return error
        problem.__cause__ = error
        return problem

    def _refusal(self, step: int, error: OSError) -> str:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        hint = ". Free some space, or keep fewer with checkpoint.keep" if full else ""
        return self._not_saved(step, error.strerror or repr(error)) + hint

    def _not_saved(self, step: int, why: str) -> str:
        latest = readable_pointer(self.root, "latest")
        before = "there was none before it" if latest is None else f"step {latest} is still there"
        return f"the checkpoint of step {step} could not be saved in {self.root}: {why}; {before}"
