"""What a step costs beyond hand-written PyTorch, for each axis: `python -m scale.overhead`.

Ranks are forked from one process and hold both sides, which take turns: the loop of Setpoint
without callbacks, and the same model, data and optimizer in plain PyTorch, with the mean loss of
all ranks brought to the host after each step, as a loop that watches for NaN does.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from tests.support.ranks import fork_group
from torch import nn

from harness import adamw, options, ratio, record, setpoint_step
from scale import sides as hands
from setpoint.config.composition import compose
from setpoint.parallel.world import World
from setpoint.train.build.components import build_components
from setpoint.train.config import Job

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


# What divides among four ranks, and holds no matrix in two places.
DIVISIBLE = ("model.layers=4", "model.heads=4", "model.kv_heads=4", "model.tie_embeddings=false")
# Nothing but the cross-entropy is in the loss. Steps are small: tokens choose other experts where
# rounding differs, and soon the loss does.
EXPERTS = (*DIVISIBLE, "model.moe.experts=8", "model.moe.balance_loss=0", "optimizer.lr=1e-5")


class Axis(NamedTuple):
    """One way to divide.

    Arguments:
        flags: for Setpoint, by the number of ranks.
        by_hand: divides a whole model in plain PyTorch.
        least: ranks that it takes.
        model: flags of the model that both sides train.
        divides: what the number of ranks divides; 0: it may be any.
    """

    flags: Callable[[int], tuple[str, ...]]
    by_hand: Callable[[nn.Module, int], hands.Side]
    least: int = 2
    model: tuple[str, ...] = ()
    divides: int = 0


def staged(ranks: int) -> tuple[str, ...]:
    """Flags of a pipeline with the stages that the other side has."""
    split = [f"[{', '.join(parts)}]" for parts in hands.stages_of(4, ranks)]
    return (
        f"parallel.pipeline={ranks}",
        f"parallel.pipelining.split=[{', '.join(split)}]",
        "batch.accumulation=4",
    )


AXES = {
    "replicate": Axis(lambda n: (), hands.replicated),
    "shard": Axis(lambda n: (f"parallel.shard={n}",), hands.sharded),
    "hybrid": Axis(lambda n: ("parallel.shard=2",), hands.hybrid, 4),
    "tensor": Axis(lambda n: (f"parallel.tensor={n}",), hands.tensor, model=DIVISIBLE, divides=4),
    "pipeline": Axis(staged, hands.pipeline, model=DIVISIBLE, divides=4),
    "ring": Axis(lambda n: (f"parallel.ring={n}",), hands.ring, model=DIVISIBLE, divides=4),
    "ulysses": Axis(
        lambda n: (f"parallel.ulysses={n}",), hands.ulysses, model=DIVISIBLE, divides=4
    ),
    "expert": Axis(
        lambda n: (f"parallel.shard={n}", f"parallel.expert={n}"),
        hands.expert,
        model=EXPERTS,
        divides=8,
    ),
}


def job_of(model: str, ranks: int, *flags: str) -> Job:
    """The job that both sides train, of four sequences a rank."""
    sizes = (f"batch.global_size={4 * ranks}", f"parallel.world_size={ranks}")
    given = (*FIXED, DATA, *MODELS[model], *sizes, *flags)
    return compose(Job, "tiny", flags=[f"--{flag}" for flag in given]).resolve()


def by_hand(job: Job, alone: Job, axis: Axis, steps: int) -> Callable[[], float]:
    """A step of plain PyTorch on the same rows of the same data, which gives the mean loss."""
    feed = build_components(job).feed
    batches = [feed.take().batches for _ in range(steps)]
    whole = build_components(alone, world=World(torch.device("cpu"))).model
    model, passes, clip = axis.by_hand(whole.train(), dist.get_world_size())
    parameters = list(model.parameters())
    optimizer = adamw(parameters, job.optimizer)
    number = count()

    def step() -> float:
        mean = passes(batches[next(number)])
        clip(parameters)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        dist.all_reduce(mean)
        return mean.item()

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


def measure(rank: int, store: str, arguments: Any) -> None:
    """One rank of all axes; rank 0 prints, and fails where a bound is missed."""
    ranks = arguments.ranks
    torch.set_num_threads(arguments.threads)
    missed: list[str] = []
    speeds: list[str] = []
    for name in arguments.axes:
        axis = AXES[name]
        if ranks < axis.least or axis.divides % ranks:
            continue
        job = job_of(arguments.model, ranks, *axis.model, *axis.flags(ranks))
        alone = job_of(arguments.model, 1, *axis.model)
        steps = (arguments.rounds + 1) * arguments.steps
        sides = {"setpoint": setpoint_step(job), "by hand": by_hand(job, alone, axis, steps)}
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
        speeds.append(f"`{name}` {speed.median:.3f}")
        # Others who use the machine show in the clock, and waiting for ranks in CPU time.
        if max(speed.median, work.median) < BOUND:
            missed.append(f"{name}: {max(speed.median, work.median):.3f} is below {BOUND:.3f}")
    if rank == 0:
        record(arguments, "scale.overhead", {
            "a step on two ranks against PyTorch by hand, wall time; bound 0.971":
                ", ".join(speeds)
        })  # fmt: skip
    if missed and not arguments.free:
        raise SystemExit("; ".join(missed))


def main(given: list[str] | None = None) -> int:
    """Fork the ranks and wait for them."""
    arguments = options(
        __doc__,
        given,
        ranks=2,
        axes=list(AXES),
        model=("4M", *list(MODELS)),
        rounds=20,
        steps=3,
        threads=1,
        free=False,
    )
    return fork_group(lambda rank, store: measure(rank, store, arguments), arguments.ranks)


if __name__ == "__main__":
    sys.exit(main())
