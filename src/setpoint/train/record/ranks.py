"""What several ranks do to one run directory: one of them writes, and all of them hear of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from setpoint.checkpoint.divided import (
    Index,
    encode_index,
    file_of_rank,
    parts_to_write,
    plan_of,
    share_out,
)
from setpoint.checkpoint.durable import Written, write_file
from setpoint.checkpoint.layout import INDEX
from setpoint.checkpoint.loading import Checkpoint, Readers
from setpoint.checkpoint.manifest import DamagedCheckpoint, Manifest, verify
from setpoint.checkpoint.store import CheckpointStore, OnDamaged
from setpoint.checkpoint.tensor_file import encode_tensors
from setpoint.config import RunError, SetpointError, fingerprint
from setpoint.parallel.world import ToldByMain, World
from setpoint.track.environment import environment
from setpoint.track.run_directory import RunDirectory
from setpoint.train.config import Job
from setpoint.train.record.refuse import Plan, refuse

if TYPE_CHECKING:
    from torch.distributed.checkpoint.planner import SavePlan

ALIKE = ("code", "python", "packages")
"""What of their environments ranks must have in common."""


def refuse_alike(
    world: World, job: Job, directory: str | Path | None, accept: Sequence[str]
) -> Plan:
    """Compare a job with the record on every rank, and go on on all of them or on none.

    Raises:
        SetpointError: what `refuse` raises on any rank, or the ranks do not run the same job with
            the same code.
    """
    if world.size == 1:
        return refuse(job, directory, accept)
    plan: Plan | None = None
    refused: SetpointError | None = None
    try:
        plan = refuse(job, directory, accept)
    except SetpointError as error:
        refused = error
    here = environment()
    facts = {name: here.get(name) for name in ALIKE}
    if plan is not None:
        facts |= {"fingerprint": fingerprint(plan.job), "run directory": str(plan.path.resolve())}
    found = world.all_of((None if refused is None else str(refused), facts))
    for rank, (text, _) in enumerate(found):
        if text is not None:
            if refused is not None and rank == world.rank:
                raise refused
            raise ToldByMain(f"rank {rank}: {text}")
    for rank, (_, others) in enumerate(found):
        for name, value in found[0][1].items():
            if others[name] != value:
                raise SetpointError(
                    f"the ranks differ: {name} is {value!r} on rank 0 and {others[name]!r} on "
                    f"rank {rank}.\nValid: the same configuration and code on all ranks"
                )
    assert plan is not None
    return plan


@contextmanager
def opened(world: World, path: Path) -> Iterator[RunDirectory]:
    """The run directory: locked by the main rank, and not to be written to by the others.

    Raises:
        SetpointError: see `RunDirectory.create`; on all ranks.
    """
    made: list[RunDirectory] = []

    def create() -> bool:
        made.append(RunDirectory.create(path))
        return made[0].is_new

    is_new = world.on_main(create)
    with made[0] if made else RunDirectory(path, None, is_new) as directory:
        yield directory


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
    ) -> Path:
        """See `CheckpointStore.save`; it is there whole once all ranks have written."""
        world, inner = self.world, self.inner
        if world.size == 1:
            return inner.save(step, tensors, state, metric, texts)
        index: Index = {}

        def choose(plans: list[SavePlan]) -> list[SavePlan]:
            shares, where = share_out(plans)
            index.update(where)
            return shares

        own = parts_to_write(world.deal(plan_of(tensors), choose), tensors)
        folder = world.on_main(lambda: inner.begin(step))
        files = self._write(step, folder, own)

        def commit() -> Path:
            staged = inner.backend.stage({}, state, copies=False)
            with inner.refusing(step, folder):
                files.update(inner.backend.write(staged, folder))
                for stem, named in index.items():
                    files[stem + INDEX] = write_file(folder / (stem + INDEX), [encode_index(named)])
            return inner.commit(step, folder, files, metric, texts)

        return world.on_main(commit)

    def _write(
        self, step: int, folder: Path, own: Mapping[str, Mapping[str, Tensor]]
    ) -> dict[str, Written]:
        """Let all ranks write their parts, or none.

        Returns:
            what all of them have written.
        """
        rank, size = self.world.rank, self.world.size
        written: dict[str, Written] = {}
        refused = ""
        try:
            for stem, named in own.items():
                if named:
                    file = file_of_rank(stem, rank, size)
                    written[file] = write_file(folder / file, encode_tensors(named, copies=False))
        except OSError as error:
            refused = self.inner.refusal(step, error)
        except SetpointError as error:  # a tensor that cannot be saved: the others wait to hear
            refused = str(error)
        answers = self.world.all_of((written, refused))
        failed = [number for number, (_, text) in enumerate(answers) if text]
        if failed:
            if self.world.is_main:
                self.inner.discard(folder)
            text = f"rank {failed[0]}: {answers[failed[0]][1]}"
            raise RunError(text) if rank == failed[0] else ToldByMain(text)
        return {name: each for files, _ in answers for name, each in files.items()}

    def load(self, on_damaged: OnDamaged | None = None) -> Checkpoint | None:
        """Load the newest whole checkpoint; it ends when all ranks have read.

        Raises:
            SetpointError: the ranks do not see the same checkpoints.
        """
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
        self.world.on_main(self.inner.forget_best)

    def set_aside_after(self, step: int) -> None:
        """See `CheckpointStore.set_aside_after`."""
        self.world.on_main(lambda: self.inner.set_aside_after(step))
