"""What several ranks do to one run directory: one of them writes, and all of them hear of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from setpoint.checkpoint.loading import Checkpoint
from setpoint.checkpoint.store import CheckpointStore, OnDamaged
from setpoint.config import SetpointError, fingerprint
from setpoint.parallel.world import ToldByMain, World
from setpoint.shapes.placed import whole_of
from setpoint.track.environment import environment
from setpoint.track.run_directory import RunDirectory
from setpoint.train.config import Job
from setpoint.train.record.refuse import Plan, refuse

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


class SharedStore:
    """The checkpoints of a run: the main rank writes them, and all of them read the directory.

    Every rank calls every method, and gets the same answer, or the same error. What they do is
    that of the `CheckpointStore` that it stands before.
    """

    def __init__(self, world: World, inner: CheckpointStore) -> None:
        self.world, self.inner = world, inner
        self.root = inner.root

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
        """See `CheckpointStore.save`; what is divided among the ranks is gathered."""
        whole = {stem: self._gather(named) for stem, named in tensors.items()}
        return self.world.on_main(lambda: self.inner.save(step, whole, state, metric, texts))

    def _gather(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All of each tensor, on the main rank; elsewhere one at a time is whole."""
        found: dict[str, Tensor] = {}
        for name, tensor in named.items():
            whole = whole_of(tensor)
            if self.world.is_main:
                # What was gathered is no part of the model: it leaves the device.
                found[name] = whole if whole is tensor else whole.cpu()
        return found

    def load(self, on_damaged: OnDamaged | None = None) -> Checkpoint | None:
        """Load the newest whole checkpoint; it ends when all ranks have read.

        Raises:
            SetpointError: the ranks do not see the same checkpoints.
        """
        found = self.inner.load("auto", on_damaged=on_damaged)
        steps = self.world.all_of(None if found is None else found.step)
        if len(set(steps)) > 1:
            raise SetpointError(
                f"the ranks do not see the same checkpoints in {self.root}: the newest is of step "
                f"{', '.join(map(str, steps))} on ranks 0 to {len(steps) - 1}.\nValid: a run "
                f"directory that all ranks share"
            )
        return found

    def forget_best(self) -> None:
        """See `CheckpointStore.forget_best`."""
        self.world.on_main(self.inner.forget_best)

    def set_aside_after(self, step: int) -> None:
        """See `CheckpointStore.set_aside_after`."""
        self.world.on_main(lambda: self.inner.set_aside_after(step))
