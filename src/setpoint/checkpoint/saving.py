"""The checkpoints of a run on all its ranks, written while it waits or in the background."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from setpoint.config import RunError, SetpointError
from setpoint.files.durable import Written
from setpoint.files.tensor_file import encode_tensors
from setpoint.files.threads import Worker
from setpoint.memory.allocator import is_out_of_memory
from setpoint.parallel.world import ToldByMain, World, described, first_line

from . import staging
from .folder import INDEX, file_of_rank
from .loading import Checkpoint, Index, encode_index
from .places import format_newest
from .staging import HostMemory, Staged, Tensors, parts_to_write, plan_of, share_out
from .store import CheckpointStore, OnDamaged

if TYPE_CHECKING:
    from torch.distributed.checkpoint.planner import SavePlan


OnSaved = Callable[[Path], object]


@dataclass(slots=True)
class Save:
    """A save that has begun: what one rank writes of it.

    Arguments:
        step, metric, texts: see `CheckpointStore.save`.
        on_saved: called with its directory once it is there whole.
        memory: of its copies; None where tensors are written as they are.
        size: bytes of its tensors.
        refused: why it is not to be written, which all ranks hear when they write.
    """

    step: int
    metric: float | None = None
    texts: Mapping[str, str | bytes] | None = None
    on_saved: OnSaved | None = None
    memory: HostMemory | None = None
    size: int = 0
    files: Staged = field(default_factory=dict)
    refused: Exception | None = None
    written: Future[Path] = field(default_factory=Future)

    def settle(self) -> None:
        """Copy what is not copied yet; where that fails, no checkpoint comes of it."""
        try:
            if self.memory is not None:
                self.memory.settle()
        except Exception as error:
            self.refused = error

    def ends(self, until: float | None) -> bool:
        """Wait for its end, until a moment at most."""
        left = None if until is None else max(until - time.monotonic(), 0)
        return bool(wait([self.written], left).done)


class SharedStore:
    """The checkpoints of a run: every rank writes its part, and the main rank what is of all.

    Every rank calls every method, and gets the same answer, or the same error. What they do is
    that of the `CheckpointStore` that it stands before.

    In the background, a save returns once the states are copied to host memory, but for those that
    stay still, or an error of a save before says that the run cannot go on. The threads of all
    ranks talk in a process group of their own. What is pending is the same on all ranks, which hear
    of its end at the same point of the run: at `look`, `wait`, or a save that finds no place.

    Arguments:
        in_flight: saves in the background that may have begun and not ended; 0: none is.
        pinned: whether tensors are copied to page-locked memory then.
        timeout: seconds that ranks wait for each other while they write in the background.
    """

    def __init__(
        self,
        world: World,
        inner: CheckpointStore,
        in_flight: int = 0,
        pinned: bool = False,
        timeout: float = 0.0,
    ) -> None:
        self.world, self.inner, self.root = world, inner, inner.root
        self.in_flight, self.pinned = in_flight, pinned
        inner.world = world
        self._writers = world.apart("checkpoint", timeout) if in_flight else world
        self._thread = Worker("setpoint-checkpoint")
        self._pending: deque[Save] = deque()
        self._free: list[HostMemory] = []

    def prepare(self) -> None:
        """See `CheckpointStore.prepare`."""
        self.world.on_main(self.inner.prepare)

    @property
    def is_writing(self) -> bool:
        """Whether a save has begun, and not ended."""
        return any(not save.written.done() for save in tuple(self._pending))

    def save(
        self,
        step: int,
        tensors: Tensors,
        state: Mapping[str, Any],
        metric: float | None = None,
        texts: Mapping[str, str | bytes] | None = None,
        on_saved: OnSaved | None = None,
        still: Iterable[Tensor] = (),
    ) -> None:
        """See `CheckpointStore.save`; it is there whole once all ranks have written.

        Arguments:
            on_saved: called with its directory then.
            still: those of the tensors that nothing changes before `settle`, which this rank calls.

        Raises:
            RunError: that this save has failed, or an earlier one in the background.
        """
        if not self.in_flight:
            # Nothing changes the tensors before they are written.
            save = self.stage(Save(step, metric, texts), tensors, state)
            path = self.write(save, self.world)
            if on_saved is not None:
                on_saved(path)
            return
        while len(self._pending) >= self.in_flight:
            self._finish()
        memory = self._free.pop() if self._free else HostMemory(self.pinned)
        memory.clear(still)
        save = self.stage(Save(step, metric, texts, on_saved, memory), tensors, state)

        def write() -> Path:
            save.settle()
            return self.write(save, self._writers)

        save.written = self._thread.submit(write)
        self._pending.append(save)

    def settle(self) -> None:
        """Wait until tensors may change that were still."""
        for save in self._pending:
            save.settle()

    def look(self) -> None:
        """Take note of saves that have ended; all ranks do so at the same point of the run.

        Raises:
            RunError: that one has failed; as `save` raises it.
        """
        while self._pending:
            written = self._pending[0].written
            if self.world.any(not written.done()):
                return
            self._finish()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until all saves that have begun are there.

        Arguments:
            timeout: seconds; None: as long as it takes.

        Raises:
            RunError: that one has failed, or is not there in time.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while self._pending:
            ended = self._pending[0].ends(until)
            if self.world.any(not ended):
                raise self._give_up(timeout)
            self._finish()

    def close(self, timeout: float | None = None) -> list[tuple[int, str]]:
        """Wait for what has begun, where the run has failed and other ranks may be gone.

        Returns:
            steps that could not be saved, and why.
        """
        failed: list[tuple[int, str]] = []
        until = None if timeout is None else time.monotonic() + timeout
        while self._pending:
            save = self._pending[0]
            try:
                if not save.ends(until):
                    raise self._give_up(timeout)
                self._finish()
            except Exception as error:
                text = str(error)
                if not isinstance(error, SetpointError):
                    text = self.inner.not_saved(save.step, first_line(error) or repr(error))
                failed.append((save.step, text))
        self._thread.end()
        return failed

    def stage(self, save: Save, tensors: Tensors, state: Mapping[str, Any]) -> Save:
        """Divide what is to be written among the ranks, and take this one's part."""
        world, into = self.world, save.memory
        if world.size == 1:
            save.size = _bytes(tensors)
            try:
                save.files |= staging.stage(tensors, state, into)
            except Exception as error:
                said = self._in_words(save, error)
                raise said from said.__cause__
            return save
        index: Index = {}

        def choose(plans: list[SavePlan]) -> list[SavePlan]:
            shares, where = share_out(plans)
            index.update(where)
            return shares

        own = parts_to_write(world.deal(plan_of(tensors), choose), tensors)
        save.size = _bytes(own)
        try:
            for stem, named in own.items():
                if named:
                    file = file_of_rank(stem, world.rank, world.size)
                    save.files[file] = encode_tensors(named, into and into.copy)
            if into is not None:
                into.wait()
            if world.is_main:
                save.files |= staging.stage({}, state)
                for stem, layouts in index.items():
                    save.files[stem + INDEX] = [encode_index(layouts)]
        except Exception as error:  # such as a tensor that cannot be saved: the others wait to hear
            save.refused = error
        return save

    def write(self, save: Save, world: World) -> Path:
        """Let all ranks write what they have taken, and make a checkpoint of it, or none.

        Arguments:
            world: of all ranks; a thread needs one of its own.

        Raises:
            RunError: what a disk has refused on any rank.
        """
        inner, step = self.inner, save.step
        folder = world.on_main(lambda: inner.begin(step))
        written: dict[str, Written] = {}
        refused = save.refused
        if refused is None:
            try:
                written = staging.write(save.files, folder)
            except Exception as error:
                refused = error
            except BaseException:
                if world.is_main:
                    inner.discard(folder)
                raise
        refused = refused and self._in_words(save, refused)
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
            if save.refused is not None:  # the run has given up waiting
                inner.discard(folder)
                raise save.refused
            return inner.commit(step, folder, files, save.metric, save.texts)

        return world.on_main(commit)

    def _finish(self) -> None:
        """Wait for the oldest save, and say what it has come to."""
        save = self._pending[0]
        wait([save.written])  # Ctrl-C leaves it pending
        self._pending.popleft()
        path = save.written.result()
        if save.memory is not None:
            self._free.append(save.memory)
        if save.on_saved is not None:
            save.on_saved(path)

    def _give_up(self, timeout: float | None) -> RunError:
        """Let nothing that is still being written become a checkpoint."""
        error = RunError(
            f"the checkpoint of step {self._pending[0].step} is not written after "
            f"checkpoint.wait_timeout = {timeout:g} s, and is given up: the disk of {self.root} is "
            f"too slow, or hangs. {format_newest(self.root)}"
        )
        for save in self._pending:
            save.refused = error
        self._pending.clear()
        return error

    def _too_little_memory(self, save: Save) -> tuple[str, str]:
        """What a save lacks memory for, and what helps."""
        if save.memory is None:
            helps = "less data in memory, or fewer ranks on one machine"
            return "there is too little host memory to write it", helps
        why = (
            f"there is too little host memory for its copy, which takes {save.size / 1e6:,.1f} MB "
            f"on this rank"
        )
        fewer = f", or fewer than checkpoint.in_flight = {self.in_flight} of them"
        return why, "checkpoint.mode = sync, which copies one tensor at a time" + fewer * (
            self.in_flight > 1
        )

    def _in_words(self, save: Save, error: Exception) -> Exception:
        """What is said of an error that a save has ended with."""
        if isinstance(error, OSError):
            said = RunError(self.inner.refusal(save.step, error))
        elif is_out_of_memory(error):
            why, helps = self._too_little_memory(save)
            said = RunError(f"{self.inner.not_saved(save.step, why)}. What helps: {helps}")
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
        return self.inner.load_newest(on_damaged)

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
