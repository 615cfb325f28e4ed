"""State transfer to a replica group that comes back (torchft)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from setpoint.checkpoint.loading import LoadedCheckpoint
from setpoint.config import SetpointError, fingerprint
from setpoint.parallel.replica_groups import ReplicaGroups
from setpoint.shapes.placed import Placeable, box_of, local_part
from setpoint.train.config import Job
from setpoint.train.loop import Loop
from setpoint.train.run_state import OF_FILES, restore, snapshot
from setpoint.train.session import Run


def _compatibility_key(job: Job) -> str:
    """Key that all replica groups share: what is trained, and how it is divided."""
    assert job.parallel.torchft is not None
    sizes = (job.batch.micro_size, job.batch.accumulation, job.parallel.torchft.group_size)
    return f"{fingerprint(job)} {sizes} {job.parallel.topology}"


class PeerShard(Placeable):
    """A shard of a tensor, from the rank of the same number in another replica group.

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
        place = tuple(offset), tuple(shape)
        if place != (self.offset, tuple(self.local.shape)) and self.local.numel():
            raise SetpointError(
                f"a rank of another replica group holds elements from {self.offset} on of a "
                f"tensor, and this rank wants those from {place[0]} on.\nValid: the same ranks in "
                f"all groups"
            )
        return self.local.cpu()


def _captured(tensor: Tensor) -> Tensor | tuple[Tensor, tuple[int, ...], tuple[int, ...]]:
    """A copy of a tensor, or of the part that this rank holds, as one process sends it another."""
    part = local_part(tensor).detach().clone()
    if local_part(tensor) is tensor:
        return part
    return part, tuple(tensor.shape), box_of(tensor)[1]


@contextmanager
def replica_groups(run: Run, loop: Loop) -> Iterator[None]:
    """Join the replica groups of torchft, which exchange the state of the run.

    Each keeps its rows of metrics: those of steps that it has not taken are in another group's.
    """
    section = run.job.parallel.torchft
    assert section is not None
    states = {name: state for name, state in run.states.items() if name not in OF_FILES}
    key = _compatibility_key(run.job)
    groups = ReplicaGroups(section, run.job.parallel.timeout, key, run.world)

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
            file: {
                name: PeerShard(*sent) if isinstance(sent, tuple) else sent
                for name, sent in named.items()
            }
            for file, named in state["tensors"].items()
        }
        source, plain = Path("the state of another replica group"), json.loads(state["state"])
        step: int = plain["position"]["step"]
        checkpoint = LoadedCheckpoint(step, dict(tensors), plain, None, source)
        loop.continue_from(restore(run.job, states, checkpoint))
        run.events.write("healed", step=step, before=before)
        run.progress.note(f"step {before}: goes on at step {step}, from another replica group")

    def retaken(count: int) -> None:
        step = loop.position.step + 1
        run.events.write("retaken", step=step, groups=count)
        run.progress.note(
            f"step {step} is taken again: one of {count} replica groups was lost in it"
        )

    groups.capture, groups.restore, groups.retaken = capture, heal, retaken
    run.components.replica_groups = groups
    with groups:
        yield
