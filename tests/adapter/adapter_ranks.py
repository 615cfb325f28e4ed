"""Run by test_ranks.py in a process of its own: what two ranks send, and hold, with an adapter."""

import sys
import tempfile
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from setpoint.parallel.tensor import summed_gradients
from setpoint.plan.topology import Topology, shards_of
from setpoint.plan.workload import Workload
from setpoint.resilience.signals import StopRequest
from setpoint.shapes.placed import local_part
from setpoint.train.build.components import build_components
from setpoint.train.loop import Loop
from setpoint.train.position import Position

from ..support.ranks import fork_group
from ..train.small import small_job

WORLD = 2
ADAPTER = "adapter={type: lora, rank: 2, train: [norm]}"
FLAGS = ("duration=3 steps", "evaluation=null", "model.dropout=0", "batch.accumulation=1",
         f"parallel.world_size={WORLD}", ADAPTER)  # fmt: skip


class Reduced(TorchDispatchMode):
    """Counts the numbers that are summed over ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if "reduce" in name and "c10d" in name:
            flat: list[Any] = list(args)
            while flat and not isinstance(flat[0], torch.Tensor):
                flat = [*flat[0], *flat[1:]] if isinstance(flat[0], list | tuple) else flat[1:]
            # A reduce-scatter gives the part of this rank first, of the sum of all.
            times = WORLD if "scatter" in name else 1
            self.numbers += times * flat[0].numel()
        return func(*args, **(kwargs or {}))


def summed(folder: Path, *flags: str) -> tuple[int, int, int]:
    """Numbers that a step sums, that are trained, and in all weights."""
    job = small_job(folder, *FLAGS, *flags)
    components = build_components(job)
    loop = Loop(job, components, [], StopRequest(), Position())
    loop.step()
    with Reduced() as seen:
        loop.step()
    weights = list(components.model.parameters())
    trained = sum(prod(each.shape) for each in weights if each.requires_grad)
    return seen.numbers, trained, sum(prod(each.shape) for each in weights)


def frozen_weights_are_not_summed(folder: Path) -> None:
    for flags in ((), ("parallel.shard=2",)):
        numbers, trained, every = summed(folder, *flags)
        # The rest is counters of a step, and what makes rows of shards even.
        assert trained <= numbers <= trained + 200, (flags, numbers, trained, every)
        assert every > 2 * numbers


def ranks_hold_what_is_planned(folder: Path) -> None:
    """Where they divide the inner width of experts: by bytes, and what of it they sum."""
    for section in ("type: dora", "type: dora, quantize: {type: fp8, group_size: 8}"):
        adapter = f"adapter={{{section}, rank: 2, targets: [experts]}}"
        job = small_job(folder, *FLAGS, "parallel.tensor=2", "parallel.expert_tensor=2",
                        "model.moe.experts=4", adapter)  # fmt: skip
        model = build_components(job).model
        planned = shards_of(Workload.of(job, 257), Topology.of(job), dist.get_rank())
        assert sum(local_part(each).nbytes for each in model.parameters()) == planned.stored
        names = {id(each): name for name, each in model.named_parameters()}
        terms = {names[id(each)]: local_part(each).numel() for each in summed_gradients(model)}
        assert sum(terms.values()) == planned.terms
        ends = {name.partition(".experts.adapter.")[2] for name in terms}
        assert ends - {""} == {"gate.a", "up.a", "down.b", "down.magnitude"}


def one_rank(rank: int, store: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        frozen_weights_are_not_summed(Path(folder))
        ranks_hold_what_is_planned(Path(folder))


if __name__ == "__main__":
    sys.exit(fork_group(one_rank, WORLD))
