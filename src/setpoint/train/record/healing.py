"""What one replica group gives another that has come back: all that a checkpoint would hold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from setpoint.checkpoint.loading import Checkpoint
from setpoint.config import SetpointError, fingerprint
from setpoint.shapes.placed import Placeable, box_of, part_here
from setpoint.train.record.state import restore, snapshot

if TYPE_CHECKING:
    from setpoint.parallel.replica_groups import ReplicaGroups
    from setpoint.train.config import Job
    from setpoint.train.loop import Loop
    from setpoint.train.record.context import Run, Start


OWN = ("rows", "metrics")
"""Entries of the state that a replica group keeps to itself."""


def alike(job: Job) -> str:
    """What has to be the same in all replica groups: what is trained, and how it is divided."""
    assert job.parallel.torchft is not None
    sizes = (job.batch.micro_size, job.batch.accumulation, job.parallel.torchft.group_size)
    return f"{fingerprint(job)} {sizes} {job.parallel.topology}"


class Part(Placeable):
    """What a rank holds of a tensor, from the rank of its number in another replica group.

    Arguments:
        shape: of the whole tensor.
        offset: the first element of the part in it.
    """

    __slots__ = ("_shape", "local", "offset")

    def __init__(self, local: Tensor, shape: Sequence[int], offset: Sequence[int]) -> None:
        self.local, self._shape, self.offset = local, torch.Size(shape), tuple(offset)

    @property
    def shape(self) -> torch.Size:
        """See `Placeable.shape`."""
        return self._shape

    @property
    def dtype(self) -> torch.dtype:
        """See `Placeable.dtype`."""
        return self.local.dtype

    def box(self, offset: Sequence[int], shape: Sequence[int]) -> Tensor:
        """The part; ranks of one number hold the same parts."""
        here = tuple(offset), tuple(shape)
        if here != (self.offset, tuple(self.local.shape)) and self.local.numel():
            raise SetpointError(
                f"a rank of another replica group holds elements from {self.offset} on of a "
                f"tensor, and this rank wants those from {here[0]} on.\nValid: the same ranks in "
                f"all groups"
            )
        return self.local.cpu()


def _captured(tensor: Tensor) -> Tensor | tuple[Tensor, tuple[int, ...], tuple[int, ...]]:
    """A copy of a tensor, or of the part that this rank holds, as one process sends it another."""
    part = part_here(tensor).detach().clone()
    if part_here(tensor) is tensor:
        return part
    return part, tuple(tensor.shape), box_of(tensor)[1]


def heal_from_others(run: Run, start: Start, loop: Loop, groups: ReplicaGroups) -> None:
    """Let replica groups exchange the state of the run.

    The rows of each stay its own, and what is logged for the next one: those of the steps that it
    has not taken are in another group's.
    """
    states = {name: each for name, each in start.states.items() if name not in OWN}

    def capture() -> dict[str, Any]:
        with snapshot(states, loop.position) as taken:
            tensors = {
                file: {name: _captured(tensor) for name, tensor in named.items()}
                for file, named in taken.tensors.items()
            }
            return {"tensors": tensors, "state": json.dumps(taken.state)}

    def heal(state: dict[str, Any]) -> None:
        before = loop.position.step
        tensors: dict[str, dict[str, Tensor | Placeable]] = {
            file: {name: Part(*each) if isinstance(each, tuple) else each for name, each in named}
            for file, named in ((file, each.items()) for file, each in state["tensors"].items())
        }
        where, plain = Path("the state of another replica group"), json.loads(state["state"])
        step: int = plain["position"]["step"]
        found = Checkpoint(step, dict(tensors), plain, None, where)
        loop.go_on_at(restore(run.job, states, found))
        run.events.write("healed", step=step, before=before)
        run.progress.note(f"step {before}: goes on at step {step}, from another replica group")

    def retaken(count: int) -> None:
        step = loop.position.step + 1
        run.events.write("retaken", step=step, groups=count)
        run.progress.note(
            f"step {step} is taken again: one of {count} replica groups was lost in it"
        )

    groups.capture, groups.restore, groups.retaken = capture, heal, retaken
