"""What one replica group gives another that has come back: all that a checkpoint would hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from setpoint.checkpoint.loading import Checkpoint
from setpoint.config import fingerprint
from setpoint.train.record.state import restore, snapshot

if TYPE_CHECKING:
    from setpoint.parallel.replica_groups import ReplicaGroups
    from setpoint.shapes.placed import Placeable
    from setpoint.train.config import Job
    from setpoint.train.record.context import Run, Start
    from setpoint.train.step.loop import Loop


def alike(job: Job) -> str:
    """What has to be the same in all replica groups: what is trained, and how it is divided."""
    assert job.parallel.torchft is not None
    sizes = (job.batch.micro_size, job.batch.accumulation, job.parallel.torchft.group_size)
    return f"{fingerprint(job)} {sizes}"


def heal_from_others(run: Run, start: Start, loop: Loop, groups: ReplicaGroups) -> None:
    """Let replica groups exchange the state of the run.

    The rows of each stay its own: those of the steps that it has not taken are in another group's.
    """
    states = {name: each for name, each in start.states.items() if name != "rows"}

    def capture() -> dict[str, Any]:
        with snapshot(states, loop.position) as taken:
            tensors = {
                file: {name: tensor.detach().clone() for name, tensor in named.items()}
                for file, named in taken.tensors.items()
            }
            return {"tensors": tensors, "state": json.dumps(taken.state)}

    def heal(state: dict[str, Any]) -> None:
        before = loop.position.step
        tensors: dict[str, dict[str, Tensor | Placeable]] = state["tensors"]
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
