"""What several ranks do to one run directory: one of them writes, and all of them hear of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from setpoint.checkpoint.backend import Staged
from setpoint.checkpoint.divided import (
    Index,
    encode_index,
    parts_to_write,
    plan_of,
    share_out,
)
from setpoint.checkpoint.layout import INDEX, file_of_rank, list_checkpoints
from setpoint.checkpoint.loading import Checkpoint, Readers
from setpoint.checkpoint.manifest import DamagedCheckpoint, Manifest, verify
from setpoint.checkpoint.store import CheckpointStore, OnDamaged
from setpoint.config import RunError, SetpointError, log_of
from setpoint.files.durable import Written
from setpoint.files.tensor_file import HostMemory, encode_tensors
from setpoint.parallel.world import ToldByMain, World, described
from setpoint.track.run_directory import RunDirectory
from setpoint.train.step_errors import is_out_of_memory

if TYPE_CHECKING:
    from torch.distributed.checkpoint.planner import SavePlan


@contextmanager
def opened(world: World, path: Path) -> Iterator[RunDirectory]:
    """The run directory: locked by the main rank, and not to be written to by the others.

    One that no run is recorded in when it is left, as by a first start that is refused, is gone
    then, unless a rank that made no progress has written there where it was.

    Raises:
        SetpointError: see `RunDirectory.create`; on all ranks.
    """
    made: list[RunDirectory] = []

    def create() -> bool:
        made.append(RunDirectory.create(path))
        return made[0].is_new

    is_new = world.on_main(create)
    with made[0] if made else RunDirectory(path, None, is_new) as directory:
        is_refused = True
        try:
            yield directory
        except BaseException as error:
            # What the log says of a failure is wanted; a refusal says all of it.
            is_refused = isinstance(error, SetpointError | KeyboardInterrupt) and not log_of(error)
            raise
        finally:
            if made and is_new and is_refused and not _is_of_use(directory):
                directory.withdraw()


def _is_of_use(directory: RunDirectory) -> bool:
    """Whether a directory holds checkpoints, or says where ranks were that made no progress."""
    try:
        stacks = any(os.path.getsize(each) for each in directory.logs.glob("*.stacks"))
        return stacks or bool(list_checkpoints(directory.checkpoints))
    except OSError:  # another rank removes an empty file, or the disk fails
        return True


class SharedReaders(Readers):
    """All ranks of a job: each compares some of the files, and what one finds all of them hear."""

    def __init__(self, world: World) -> None:
        self.world = world

    def verify(self, directory: Path, manifest: Manifest, names: Collection[str]) -> None:
        """See `Readers.verify`."""
        verify(directory, manifest, sorted(names)[self.world.rank :: self.world.size])

    def agree(self, error: SetpointError | None) -> None:
        """See `Readers.agree`."""
        own = None
        if error is not None:
            is_damage = isinstance(error, DamagedCheckpoint)
            own = (str(error), (error.path, error.reason) if is_damage else None)
        said = [each for each in self.world.all_of(own) if each is not None]
        for text, damage in said:
            if damage is None:
                raise error if own == (text, None) and error is not None else ToldByMain(text)
        for _, damage in said:
            assert damage is not None
            raise DamagedCheckpoint(*damage)


@dataclass(slots=True)
class Taken:
    """What one rank is to write of a checkpoint.

    Arguments:
        step, metric, texts: see `CheckpointStore.save`.
        size: bytes of its tensors.
        files: see `Staged`.
        refused: why it is not to be written, which all ranks hear when they write.
    """

    step: int
    metric: float | None
    texts: Mapping[str, str | bytes] | None
    size: int = 0
    files: dict[str, Iterable[bytes | memoryview]] = field(default_factory=dict)
    refused: Exception | None = None


OnSaved = Callable[[Path], object]


def ignore(_: Path) -> None:
    """An `OnSaved` that does nothing."""


class SharedStore:
    """The checkpoints of a run: every rank writes its part, and the main rank what is of all.

    Every rank calls every method, and gets the same answer, or the same error. What they do is
    that of the `CheckpointStore` that it stands before.
    """

    def __init__(self, world: World, inner: CheckpointStore) -> None:
        self.world, self.inner = world, inner
        self.root = inner.root
        if world.size > 1:
            inner.readers = SharedReaders(world)

    def prepare(self) -> None:
        """See `CheckpointStore.prepare`."""
        self.world.on_main(self.inner.prepare)

    def save(
        self,
        step: int,
        tensors: Mapping[str, Mapping[str, Tensor]],
        state: Mapping[str, Any],
        metric: float | None = None,
        texts: Mapping[str, str | bytes] | None = None,
        on_saved: OnSaved = ignore,
        still: Iterable[Tensor] = (),
    ) -> None:
        """See `CheckpointStore.save`; it is there whole once all ranks have written.

        Arguments:
            on_saved: called with its directory then.
            still: those of the tensors that nothing changes before `settle`, which this rank calls.
        """
        # Nothing changes the tensors before they are written.
        on_saved(self.write(self.stage(step, tensors, state, metric, texts), self.world))

    def settle(self) -> None:
        """Wait until tensors may change that were still."""

    @property
    def is_writing(self) -> bool:
        """Whether a save has begun, and not ended."""
        return False

    def look(self) -> None:
        """Take note of saves that have ended; all ranks do so at the same point of the run.

        Raises:
            RunError: that one has failed; as `save` raises it.
        """

    def wait(self, timeout: float | None = None) -> None:
        """Wait until all saves that have begun are there.

        Arguments:
            timeout: seconds; None: as long as it takes.

        Raises:
            RunError: that one has failed, or is not there in time.
        """

    def close(self, timeout: float | None = None) -> list[tuple[int, str]]:
        """Wait for what has begun, where the run has failed and other ranks may be gone.

        Returns:
            steps that could not be saved, and why.
        """
        return []

    def stage(
        self,
        step: int,
        tensors: Mapping[str, Mapping[str, Tensor]],
        state: Mapping[str, Any],
        metric: float | None = None,
        texts: Mapping[str, str | bytes] | None = None,
        into: HostMemory | None = None,
    ) -> Taken:
        """Divide what is to be written among the ranks, and take this one's part.

        Arguments:
            into: see `Backend.stage`.
        """
        world, backend = self.world, self.inner.backend
        taken = Taken(step, metric, texts)
        if world.size == 1:
            taken.size = _bytes(tensors)
            try:
                taken.files |= backend.stage(tensors, state, into).files
            except Exception as error:
                said = self._in_words(taken, error)
                raise said from said.__cause__
            return taken
        index: Index = {}

        def choose(plans: list[SavePlan]) -> list[SavePlan]:
            shares, where = share_out(plans)
            index.update(where)
            return shares

        own = parts_to_write(world.deal(plan_of(tensors), choose), tensors)
        taken.size = _bytes(own)
        try:
            for stem, named in own.items():
                if named:
                    file = file_of_rank(stem, world.rank, world.size)
                    taken.files[file] = encode_tensors(named, into)
            if into is not None:
                into.wait()
            if world.is_main:
                taken.files |= backend.stage({}, state).files
                for stem, layouts in index.items():
                    taken.files[stem + INDEX] = [encode_index(layouts)]
        except Exception as error:  # such as a tensor that cannot be saved: the others wait to hear
            taken.refused = error
        return taken

    def write(self, taken: Taken, world: World) -> Path:
        """Let all ranks write what they have taken, and make a checkpoint of it, or none.

        Arguments:
            world: of all ranks; a thread needs one of its own.

        Raises:
            RunError: what a disk has refused on any rank.
        """
        inner, step = self.inner, taken.step
        folder = world.on_main(lambda: inner.begin(step))
        written: dict[str, Written] = {}
        refused = taken.refused
        if refused is None:
            try:
                written = inner.backend.write(Staged(taken.files), folder)
            except Exception as error:
                refused = error
            except BaseException:
                if world.is_main:
                    inner.discard(folder)
                raise
        refused = refused and self._in_words(taken, refused)
        answers = world.all_of((written, None if refused is None else described(refused)))
        files: dict[str, Written] = {}
        for rank, (some, text) in enumerate(answers):
            if text is None:
                files.update(some)
                continue
            if world.is_main:
                inner.discard(folder)
            if rank != world.rank:
                raise ToldByMain(f"rank {rank}: {text}", RunError.status)
            assert refused is not None
            if world.size == 1:
                raise refused
            raise RunError(f"rank {rank}: {text}") from refused

        def commit() -> Path:
            if taken.refused is not None:  # the run has given up waiting
                inner.discard(folder)
                raise taken.refused
            return inner.commit(step, folder, files, taken.metric, taken.texts)

        return world.on_main(commit)

    def too_little_memory(self, taken: Taken) -> tuple[str, str]:
        """What a save lacks memory for, and what helps."""
        helps = "less data in memory, or fewer ranks on one machine"
        return "there is too little host memory to write it", helps

    def _in_words(self, taken: Taken, error: Exception) -> Exception:
        """What is said of an error that a save has ended with."""
        if isinstance(error, OSError):
            said = RunError(self.inner.refusal(taken.step, error))
        elif is_out_of_memory(error):
            why, helps = self.too_little_memory(taken)
            said = RunError(f"{self.inner.not_saved(taken.step, why)}. What helps: {helps}")
        else:
            return error
        said.__cause__ = error
        return said

    def load(self, on_damaged: OnDamaged | None = None) -> Checkpoint | None:
        """Load the newest whole checkpoint; it ends when all ranks have read.

        Raises:
            SetpointError: the ranks do not see the same checkpoints.
        """
        self.wait()
        steps = self.world.all_of(self.inner.steps)
        if any(each != steps[0] for each in steps):
            newest = ", ".join(str(max(each, default=None)) for each in steps)
            raise SetpointError(
                f"the ranks do not see the same checkpoints in {self.root}: the newest is of step "
                f"{newest} on ranks 0 to {len(steps) - 1}.\nValid: a run directory that all ranks "
                f"share"
            )
        return self.inner.load("auto", on_damaged=on_damaged)

    def forget_best(self) -> None:
        """See `CheckpointStore.forget_best`."""
        self.wait()
        self.world.on_main(self.inner.forget_best)

    def set_aside_after(self, step: int) -> None:
        """See `CheckpointStore.set_aside_after`."""
        self.wait()
        self.world.on_main(lambda: self.inner.set_aside_after(step))


def _bytes(tensors: Mapping[str, Mapping[str, Tensor]]) -> int:
    return sum(each.nbytes for named in tensors.values() for each in named.values())
