"""Run by test_traps.py in a process of its own: what two ranks get wrong without an error."""

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

from setpoint.parallel.world import World
from setpoint.resilience.signals import StopRequest
from setpoint.shapes.placed import local_part, whole_of
from setpoint.train.build.components import build_components
from setpoint.train.config import Job
from setpoint.train.loop import Loop
from setpoint.train.open import settings_of
from setpoint.train.position import Position

from ..support.ranks import fork_group
from ..train.small import small_job

WORLD = 2
COMMON = ("model.dropout=0", "model.layers=2", "evaluation=null", "batch.accumulation=1")
ALONE = World(torch.device("cpu"))
SHAPES = (("replicate=2",), ("shard=2",), ("tensor=2", "sequence_parallel=false"), ("tensor=2",))


def job_of(folder: Path, *flags: str, shape: tuple[str, ...] = ()) -> Job:
    divided = [f"parallel.{each}" for each in (f"world_size={WORLD}", *shape)] if shape else []
    return small_job(folder, *COMMON, *flags, *divided)


def losses(folder: Path, shape: tuple[str, ...], *flags: str) -> list[float]:
    """Of two steps."""
    job = job_of(folder, *flags, "duration=2 steps", shape=shape)
    with settings_of(job):
        loop = Loop(job, build_components(job), [], StopRequest(), Position())
        loop.components.model.train()
        return [loop.step().loss for _ in range(2)]


def first_weights_are_those_of_one_rank(folder: Path) -> None:
    """Drawn on each rank alike, the rows of a matrix would repeat."""
    alone = build_components(job_of(folder), world=ALONE).model.state_dict()
    for shape in SHAPES:
        model = build_components(job_of(folder, shape=shape)).model
        for name, value in model.state_dict().items():
            assert torch.equal(whole_of(value), alone[name]), (shape, name)
        if shape == ("shard=2",):
            parts: list[torch.Tensor | None] = [None] * WORLD
            matrix = model.state_dict()["embedding.weight"]
            dist.all_gather_object(parts, local_part(matrix).clone())
            one, other = parts
            assert one is not None and other is not None
            assert not torch.equal(one[: len(other)], other)


def compiled_layers_take_the_result_of_a_collective(folder: Path) -> None:
    """The embedding gives layers a tensor that is still under way; a whole graph holds it."""
    ways = ((), ("compile={backend: aot_eager}",), ("compile={backend: aot_eager, scope: graph}",))
    for shape in SHAPES[2:]:
        eager, *others = (losses(folder, shape, *flags) for flags in ways)
        for found in others:
            torch.testing.assert_close(found, eager, rtol=1e-5, atol=0)


CHECKS = {
    "weights": first_weights_are_those_of_one_rank,
    "compiled": compiled_layers_take_the_result_of_a_collective,
}


def one_rank(rank: int, store: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or CHECKS:
            CHECKS[name](Path(folder))


if __name__ == "__main__":
    sys.exit(fork_group(one_rank, WORLD))
