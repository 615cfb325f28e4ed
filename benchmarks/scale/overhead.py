"""What a step costs beyond hand-written PyTorch, for each axis: `python -m scale.overhead`.

Ranks are forked from one process and hold both sides, which take turns: the loop of Setpoint
without callbacks, and the same model, data and optimizer in plain PyTorch, with the mean loss of
all ranks brought to the host after each step, as a loop that watches for NaN does.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from setpoint.train.threads import prepare_threads

prepare_threads()  # before torch is imported

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import setpoint.presets  # noqa: E402, F401 - registers the preset
from setpoint.config.composition import compose  # noqa: E402
from setpoint.model.layers import layers_of  # noqa: E402
from setpoint.parallel.world import World  # noqa: E402
from setpoint.resilience.signals import StopRequest  # noqa: E402
from setpoint.train.build.components import build_components  # noqa: E402
from setpoint.train.config import Job  # noqa: E402
from setpoint.train.step.loop import Loop  # noqa: E402
from setpoint.train.step.position import Position  # noqa: E402
from support.turns import ratio  # noqa: E402

BOUND = 1 / 1.03
"""Setpoint's step takes at most 3 % longer."""
TOLERANCE = 1e-4
"""Relative difference of the losses at which a speed is void."""
MODELS: dict[str, tuple[str, ...]] = {
    "4M": ("model.dim=256", "model.layers=4", "model.heads=4", "batch.sequence_length=256"),
    # Next to no arithmetic, so that a test can run it.
    "dust": ("model.dim=16", "model.layers=1", "model.heads=2", "batch.sequence_length=16"),
}
FIXED = (
    "checkpoint.every=never",
    "evaluation=null",
    "optimizer.clip_norm=1.0",
    "schedule=none",
    "parallel.device=cpu",
    "batch.accumulation=1",
    "precision.compute=fp32",
    "duration=100000 steps",
)
DATA = "data.sources=[{type: random, documents: 400, length: 4000, alphabet: 64}]"


def replicated(model: nn.Module, ranks: int) -> nn.Module:
    """DDP."""
    return nn.parallel.DistributedDataParallel(model)


def sharded(model: nn.Module, ranks: int) -> nn.Module:
    """FSDP2 over all ranks."""
    from torch.distributed.device_mesh import init_device_mesh

    return _sharded(model, init_device_mesh("cpu", (ranks,)))


def hybrid(model: nn.Module, ranks: int) -> nn.Module:
    """FSDP2 over two ranks, replicated over the others."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("replicate", "shard"))
    return _sharded(model, mesh)


def _sharded(model: nn.Module, mesh: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for _, layer in layers_of(model):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    return model


class Axis(NamedTuple):
    """One way to divide.

    Arguments:
        flags: for Setpoint, by the number of ranks.
        by_hand: divides a whole model in plain PyTorch.
        least: ranks that it takes.
    """

    flags: Callable[[int], tuple[str, ...]]
    by_hand: Callable[[nn.Module, int], nn.Module]
    least: int = 2


AXES = {
    "replicate": Axis(lambda n: (), replicated),
    "shard": Axis(lambda n: (f"parallel.shard={n}",), sharded),
    "hybrid": Axis(lambda n: ("parallel.shard=2",), hybrid, 4),
}


def job_of(model: str, ranks: int, *flags: str) -> Job:
    """The job that both sides train, of four sequences a rank."""
    sizes = (f"batch.global_size={4 * ranks}", f"parallel.world_size={ranks}")
    given = (*FIXED, DATA, *MODELS[model], *sizes, *flags)
    return compose(Job, "tiny", flags=[f"--{flag}" for flag in given]).resolve()


def ours(job: Job) -> Callable[[], float]:
    """A step of Setpoint's loop, which gives its loss."""
    loop = Loop(job, build_components(job), [], StopRequest(), Position())
    loop.parts.model.train()
    return lambda: loop.step().loss


def by_hand(job: Job, alone: Job, axis: Axis, steps: int) -> Callable[[], float]:
    """A step of plain PyTorch on the same rows of the same data, which gives the mean loss."""
    ranks = dist.get_world_size()
    feed = build_components(job).feed
    batches = [feed.take().batches[0] for _ in range(steps)]
    whole = build_components(alone, world=World(torch.device("cpu"))).model
    model = axis.by_hand(whole.train(), ranks)
    options: Any = job.optimizer
    every = list(model.parameters())
    groups = [
        {"params": [p for p in every if p.ndim >= 2], "weight_decay": options.weight_decay},
        {"params": [p for p in every if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups, lr=options.lr, betas=options.betas, eps=options.eps, fused=True
    )
    number = count()

    def step() -> float:
        batch = batches[next(number)]
        loss = F.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(every, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean: Tensor = loss.detach().clone()
        dist.all_reduce(mean)
        return mean.item() / ranks

    return step


class Found(NamedTuple):
    """Seconds of each round, by side: the slowest rank's by the clock, and CPU time of all."""

    wall: dict[str, list[float]]
    cpu: dict[str, list[float]]
    apart: float


def in_turns(sides: dict[str, Callable[[], float]], rounds: int, steps: int) -> Found:
    """Blocks of steps, one side after the other; the first block of each is not measured."""
    wall, cpu = ({name: list[float]() for name in sides} for _ in range(2))
    losses = {name: list[float]() for name in sides}
    names = list(sides)
    for turn in range(rounds + 1):
        for name in names if turn % 2 else reversed(names):
            dist.barrier()
            began, used = time.perf_counter(), time.process_time()
            losses[name] += [sides[name]() for _ in range(steps)]
            spent = torch.tensor([time.perf_counter() - began, time.process_time() - used])
            most = spent[:1].clone()
            dist.all_reduce(most, dist.ReduceOp.MAX)
            dist.all_reduce(spent)
            if turn:
                wall[name].append(float(most))
                cpu[name].append(float(spent[1]))
    pairs = zip(*losses.values(), strict=True)
    return Found(wall, cpu, max(abs(a - b) / abs(b) for a, b in pairs))


def measure(rank: int, store: str, arguments: argparse.Namespace) -> None:
    """One rank of all axes; rank 0 prints, and fails where a bound is missed."""
    ranks = arguments.ranks
    torch.set_num_threads(arguments.threads)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    missed: list[str] = []
    for name in arguments.axes:
        axis = AXES[name]
        if ranks < axis.least:
            continue
        job = job_of(arguments.model, ranks, *axis.flags(ranks))
        alone = job_of(arguments.model, 1)
        steps = (arguments.rounds + 1) * arguments.steps
        sides = {"setpoint": ours(job), "by hand": by_hand(job, alone, axis, steps)}
        found = in_turns(sides, arguments.rounds, arguments.steps)
        assert found.apart < TOLERANCE, f"{name}: losses are {found.apart:.2g} apart"
        if rank:
            continue
        speed, work = (ratio(each, "setpoint", "by hand") for each in (found.wall, found.cpu))
        best = min(found.wall["by hand"]) / arguments.steps * 1000
        print(
            f"{name}, {ranks} ranks: {speed} by the clock, {work} by CPU time; a step by hand "
            f"takes {best:.1f} ms; losses agree to {found.apart:.1g}",
            flush=True,
        )
        # Others who use the machine show in the clock, and waiting for ranks in CPU time.
        if max(speed.median, work.median) < BOUND:
            missed.append(f"{name}: {max(speed.median, work.median):.3f} is below {BOUND:.3f}")
    dist.destroy_process_group()
    if missed and not arguments.free:
        raise SystemExit("; ".join(missed))


def main(given: list[str] | None = None) -> int:
    """Fork the ranks and wait for them."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from tests.ranks import fork

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--axes", nargs="+", choices=list(AXES), default=list(AXES))
    parser.add_argument("--model", choices=list(MODELS), default="4M")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=3, help="steps in a block")
    parser.add_argument("--threads", type=int, default=1, help="of a rank")
    parser.add_argument("--free", action="store_true", help="hold no bound")
    arguments = parser.parse_args(given)
    return fork(lambda rank, store: measure(rank, store, arguments), arguments.ranks)


if __name__ == "__main__":
    sys.exit(main())
