"""What a step costs beyond hand-written PyTorch, for each axis: `python -m train.ranks`.

Ranks are forked from one process and hold both sides, which take turns: the loop of Setpoint
without callbacks, and the same model, data and optimizer in plain PyTorch, with the mean loss of
all ranks brought to the host after each step, as a loop that watches for NaN does.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm

from harness import Report, adamw, ratio, setpoint_step
from setpoint.config.composition import compose
from setpoint.model.build import layers_of
from setpoint.parallel.world import World
from setpoint.shapes.batch import Batch
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
    "checkpoint.every=never", "evaluation=null", "optimizer.clip_norm=1.0", "schedule=none",
    "parallel.device=cpu", "batch.accumulation=1", "precision.compute=fp32",
    "duration=100000 steps",
)  # fmt: skip
DATA = "data.sources=[{type: random, documents: 400, length: 4000, alphabet: 64}]"


# What divides among four ranks, and holds no matrix in two places.
DIVISIBLE = ("model.layers=4", "model.heads=4", "model.kv_heads=4", "model.tie_embeddings=false")


MAX_NORM = 1.0
"""What gradients are clipped at."""
Passes = Callable[[Sequence[Batch]], Tensor]
Clip = Callable[[Sequence[nn.Parameter]], object]


def clip_alike(parameters: Sequence[nn.Parameter]) -> object:
    """Clip parameters that are all of one kind: whole, or on one mesh."""
    return clip_grad_norm_(parameters, MAX_NORM)


class Side(NamedTuple):
    """What a rank trains by hand.

    Arguments:
        model: whose parameters the optimizer gets: those that this rank has.
        passes: runs forward and backward over the micro-batches of a step, and gives this rank's
            term of the mean loss, without gradient.
        clip: the gradients of the parameters it gets.
    """

    model: nn.Module
    passes: Passes
    clip: Clip = clip_alike


def replicated(model: nn.Module, ranks: int) -> Side:
    """DDP."""
    return _with_data(nn.parallel.DistributedDataParallel(model), ranks)


def sharded(model: nn.Module, ranks: int) -> Side:
    """FSDP2 over all ranks."""
    from torch.distributed.device_mesh import init_device_mesh

    return _with_data(_sharded(model, init_device_mesh("cpu", (ranks,))), ranks)


def tensor(model: nn.Module, ranks: int) -> Side:
    """Matrices, vocabulary and loss divided by `parallelize_module`."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        loss_parallel,
        parallelize_module,
    )

    whole, column, row = Replicate(), ColwiseParallel(), RowwiseParallel()
    plan: dict[str, Any] = {
        "embedding": RowwiseParallel(input_layouts=whole),
        "output": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    for name, _ in layers_of(model):
        # The columns of a module share one sum of the gradients of their input.
        plan[f"{name}.attention"] = PrepareModuleInput(
            input_layouts=(whole, None), desired_input_layouts=(whole, None)
        )
        plan[f"{name}.feed_forward"] = PrepareModuleInput(
            input_layouts=(whole,), desired_input_layouts=(whole,)
        )
        columns = ("attention.query", "attention.key", "attention.value")
        for inner in (*columns, "feed_forward.gate", "feed_forward.up"):
            plan[f"{name}.{inner}"] = column
        plan |= {f"{name}.attention.output": row, f"{name}.feed_forward.down": row}
    parallelize_module(model, init_device_mesh("cpu", (ranks,)), plan)

    def passes(batches: Sequence[Batch]) -> Tensor:
        with loss_parallel():
            loss: Any = _loss(model, batches[0])
            loss.backward()
        return loss.detach().full_tensor() / ranks

    return Side(model, passes, clip_apart)


def pipeline(model: Any, ranks: int) -> Side:
    """One stage on each rank, by `PipelineStage` and `Schedule1F1B`."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank = dist.get_rank()
    model.keep_parts(stages_of(len(model.layers), ranks)[rank])
    stage = PipelineStage(model, rank, ranks, torch.device("cpu"))
    schedule: Any = None

    def passes(batches: Sequence[Batch]) -> Tensor:
        nonlocal schedule
        if schedule is None:
            schedule = Schedule1F1B(stage, len(batches), loss_fn=_cross_entropy)
        losses: list[Tensor] = []
        given: Any = {"return_outputs": False}
        if stage.is_last:
            given |= {"target": torch.cat([batch.targets for batch in batches]), "losses": losses}
        first = [torch.cat([batch.inputs for batch in batches])] if stage.is_first else []
        schedule.step(*first, **given)
        return torch.stack(losses).mean().detach() if losses else torch.zeros(())

    return Side(model, passes, lambda parameters: clip_apart(parameters, own=True))


def stages_of(layers: int, ranks: int) -> list[list[str]]:
    """The parts of a model in each stage of a pipeline: as many layers in one as in another."""
    names = [f"layers.{layer}" for layer in range(layers)]
    each = layers // ranks
    stages = [names[first : first + each] for first in range(0, layers, each)]
    stages[0].insert(0, "embedding")
    stages[-1].append("output")
    return stages


def clip_apart(parameters: Sequence[nn.Parameter], own: bool = False) -> None:
    """Clip parameters of which some are DTensors and others are not, by one norm of all."""
    from torch.distributed.tensor import DTensor

    divided = [each for each in parameters if isinstance(each, DTensor)]
    plain = [each for each in parameters if not isinstance(each, DTensor)]
    squares = _norm(plain).square()
    if own:
        dist.all_reduce(squares)
    if divided:
        found: Any = _norm(divided)
        squares = squares + found.full_tensor().square()
    for kind in (plain, divided):
        clip_grads_with_norm_(kind, MAX_NORM, squares.sqrt())


def _norm(parameters: Sequence[nn.Parameter]) -> Tensor:
    return get_total_norm([each.grad for each in parameters if each.grad is not None])


def _with_data(model: nn.Module, ranks: int) -> Side:
    """Ranks that read different data, whose gradients the model averages."""

    def passes(batches: Sequence[Batch]) -> Tensor:
        (batch,) = batches
        loss = _loss(model, batch)
        loss.backward()
        return loss.detach() / ranks

    return Side(model, passes)


def _sharded(model: nn.Module, mesh: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for _, layer in layers_of(model):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    return model


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    return _cross_entropy(model(batch.inputs), batch.targets)


class Axis(NamedTuple):
    """One way to divide.

    Arguments:
        flags: for Setpoint, by the number of ranks.
        by_hand: divides a whole model in plain PyTorch.
        model: flags of the model that both sides train.
        divides: what the number of ranks divides; 0: it may be any.
    """

    flags: Callable[[int], tuple[str, ...]]
    by_hand: Callable[[nn.Module, int], Side]
    model: tuple[str, ...] = ()
    divides: int = 0


def staged(ranks: int) -> tuple[str, ...]:
    """Flags of a pipeline with the stages that the other side has."""
    split = [f"[{', '.join(parts)}]" for parts in stages_of(4, ranks)]
    return (
        f"parallel.pipeline={ranks}",
        f"parallel.pipelining.split=[{', '.join(split)}]",
        "batch.accumulation=4",
    )


AXES = {
    "replicate": Axis(lambda n: (), replicated),
    "shard": Axis(lambda n: (f"parallel.shard={n}",), sharded),
    "tensor": Axis(lambda n: (f"parallel.tensor={n}",), tensor, model=DIVISIBLE, divides=4),
    "pipeline": Axis(staged, pipeline, model=DIVISIBLE, divides=4),
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


def measure(rank: int, report: Report) -> None:
    """Measure all axes on one rank; rank 0 prints, and fails where a bound is missed."""
    chosen, speeds = report.options, list[str]()
    for name in chosen.axes:
        axis = AXES[name]
        if axis.divides % chosen.ranks:
            continue
        job = job_of(chosen.model, chosen.ranks, *axis.model, *axis.flags(chosen.ranks))
        alone = job_of(chosen.model, 1, *axis.model)
        steps = (chosen.rounds + 1) * chosen.steps
        sides = {"setpoint": setpoint_step(job), "by hand": by_hand(job, alone, axis, steps)}
        wall, cpu, apart = in_turns(sides, chosen.rounds, chosen.steps)
        report.bound(apart < TOLERANCE, f"{name}: losses are {apart:.2g} apart")
        speed, work = (ratio(times, "setpoint", "by hand") for times in (wall, cpu))
        # Others who use the machine show in the wall time, and waiting for ranks in CPU time.
        best = max(speed.median, work.median)
        report.bound(best >= BOUND, f"{name}: {best:.3f} is below {BOUND:.3f}")
        milliseconds = f"{min(wall['by hand']) / chosen.steps * 1000:.1f}"
        report.rows.append((name, milliseconds, str(speed), str(work)))
        speeds.append(f"`{name}` {speed.median:.3f}")
    report.results["a step on two ranks against PyTorch by hand, wall time; bound 0.971"] = (
        ", ".join(speeds)
    )
    if rank == 0 and (status := report.finish(("axis", "ms by hand", "ratio", "CPU time"))):
        raise SystemExit(status)


def main(words: list[str] | None = None) -> int:
    sys.path.append(str(Path(__file__).parents[2]))
    from tests.support.ranks import fork_group

    report = Report(
        "train.ranks", __doc__, words, ranks=2, axes=[*AXES], model=("4M", *MODELS), rounds=20,
        steps=3,
    )  # fmt: skip
    return fork_group(lambda rank, _: measure(rank, report), report.options.ranks)


if __name__ == "__main__":
    sys.exit(main())
