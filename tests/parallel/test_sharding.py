"""How ranks hold weights and sum gradients: each way trains the same, and does what it says."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from setpoint.config import ConfigError, resolve
from setpoint.parallel import buckets, divide, replicas
from setpoint.parallel.config import Parallel, Sharding
from setpoint.parallel.sharding import units_of
from setpoint.parallel.world import World, world_of
from setpoint.resilience.signals import StopRequest
from setpoint.shapes.placed import whole_of
from setpoint.train.build.components import build_components
from setpoint.train.config import Job
from setpoint.train.evaluation.scores import evaluate
from setpoint.train.loop import Loop
from setpoint.train.position import Position

from ..support.ranks import run_on_ranks
from ..support.snapshots import refused
from ..train.small import small_job

RANKS = ("parallel.world_size=2", "batch.accumulation=1", "parallel.shard=2")
WORLD, STEPS = 2, 2
COMMON = (f"duration={STEPS} steps", "model.dropout=0", "model.layers=4", "batch.accumulation=2")
SHORT = (*COMMON, "model.layers=3", "evaluation.sequences=4")
TWO = (f"parallel.world_size={WORLD}", "batch.micro_size=1")
SHARDED = (*TWO, "parallel.shard=2")
UNITS = "parallel.sharding.units=['layers.*feed_forward']"
KNOBS = (
    (UNITS, "parallel.sharding.layers_per_unit=2", "loss=chunked_cross_entropy"),
    (UNITS, "parallel.sharding.forward_prefetch=2", "parallel.sharding.backward_prefetch=2"),
    ("parallel.reshard=false", "memory.activation_checkpointing=full"),
)


def trained(job: Job, world: World | None = None) -> Any:
    """Whole weights after some steps with evaluations between them, and the last score."""
    components = build_components(job, world=world)
    loop = Loop(job, components, [], StopRequest(), Position())
    score: Any = None
    for _ in range(STEPS):
        loop.step()
        score = astuple(evaluate(job, components)["held_out"])[:3]
    weights = components.model.state_dict().items()
    return torch.tensor(score), {name: whole_of(value).float() for name, value in weights}


def offloaded(config: Parallel, *given: Any, real: Any = divide.shard) -> None:
    """Divide a model with its weights on the host."""
    real(config.evolve(sharding=config.sharding.evolve(offload=True)), *given)


def equal_to_one_rank(folder: Path) -> None:
    """Ways to gather change nothing; nor does an evaluation at another point than is trained."""
    alone, one = (*SHORT, "batch.micro_size=2"), World(torch.device("cpu"))
    # Steps in proportion to gradients: Adam divides the rounding of those near 0 by itself.
    sgd = ("optimizer=sgd", "optimizer.lr=0.5", "optimizer.momentum=0.9")
    expected = trained(small_job(folder, *alone, *sgd), one)
    for knob in KNOBS:
        found = trained(small_job(folder, *SHORT, *sgd, *SHARDED, *knob))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    with pytest.MonkeyPatch.context() as patch:
        # Refused where the model is computed on a CPU, which it changes nothing for.
        patch.setattr(divide, "shard", offloaded)
        found = trained(small_job(folder, *SHORT, *sgd, *SHARDED))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    short = ("precision.params=bf16", "precision.compute=bf16", "precision.reduce=fp32")
    adam = ("optimizer=anyprecision_adamw", "optimizer.eps=1e-4")
    masters = ("precision.master=fp32", *sgd)
    for more, ways in ((adam, ("sharded", "unsharded")), (masters, ("unsharded",))):
        expected = trained(small_job(folder, *alone, *short, *more), one)
        for way in ways:
            flags = (*short, *more, f"parallel.sharding.accumulation={way}")
            found = trained(small_job(folder, *SHORT, *SHARDED, *flags))
            torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    free = ("optimizer=schedule_free_adamw", "schedule=none", "optimizer.lr=0.05")
    free = (*free, "optimizer.eps=1e-4")
    expected = trained(small_job(folder, *alone, *free), one)
    found = trained(small_job(folder, *SHORT, *SHARDED, *free))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


class Gathered(TorchDispatchMode):
    """Counts gathers of weights; torch's CommDebugMode fails on a model that is given a head."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += "allgather" in str(func)
        return func(*args, **(kwargs or {}))


def gathered(folder: Path, *flags: str) -> int:
    """How often weights are gathered in a step of two micro-batches."""
    job = small_job(folder, *COMMON, *SHARDED, *flags)
    loop = Loop(job, build_components(job), [], StopRequest(), Position())
    loop.step()
    with Gathered() as seen:
        loop.step()
    return seen.count


def weights_are_gathered_as_often_as_it_says(folder: Path) -> None:
    """In two forward and two backward passes: 4 layers, the embedding, norm and output.

    The second forward pass begins with an embedding and a layer that are gathered already.
    """
    assert gathered(folder) == 4 * 4 - 1 + 2 + 2
    assert gathered(folder, "parallel.reshard=true") == 4 * 4 - 1 + 2 + 4
    assert gathered(folder, "parallel.reshard=false") == 4 + 2
    assert gathered(folder, "parallel.sharding.layers_per_unit=2") == 4 * 2 - 1 + 2 + 2
    assert gathered(folder, "model.tie_embeddings=true") == 4 * 4 + 1


def gradients_are_summed_while_they_are_computed(folder: Path) -> None:
    """In buckets of the size asked for, most of them before the backward pass ends."""
    formats = ("precision.params=bf16", "precision.compute=bf16", "precision.reduce=fp32")
    job = small_job(folder, *COMMON, *TWO, *formats, "optimizer=anyprecision_adamw",
                    "parallel.bucket_size=0.01")  # fmt: skip
    components = build_components(job)
    sums = components.replicas._sums
    assert sums is not None
    trained = [w for w in components.model.parameters() if w.requires_grad]
    assert [w for bucket in sums.buckets for w in bucket] == trained[::-1]
    sizes = [sum(4 * w.numel() for w in bucket) for bucket in sums.buckets]
    assert len(sizes) > 4 and all(
        size <= 0.01 * 2**20 or len(bucket) == 1
        for size, bucket in zip(sizes, sums.buckets, strict=True)
    )
    sent: list[int] = []
    real = buckets.GradientSums._send

    def counted(self: buckets.GradientSums) -> None:
        sent.append(sum(self._missing))
        real(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buckets.GradientSums, "_send", counted)
        Loop(job, components, [], StopRequest(), Position()).step()
    assert len(sent) == len(sizes) and sum(missing > 0 for missing in sent) == len(sizes) - 1


def gradients_lie_in_buckets(folder: Path) -> None:
    """DDP sums them where they are added up, in both micro-batches of a step."""
    job = small_job(folder, *COMMON, *TWO, "parallel.bucket_size=0.01", "duration=3 steps")
    components = build_components(job)
    loop = Loop(job, components, [], StopRequest(), Position())
    weights = [w for w in components.model.parameters() if w.requires_grad]
    sent: set[int] = set()
    apart: list[int] = []
    real, shared = replicas._send, components.replicas.micro_batch

    def send(bucket: Any, on_last: Any) -> Any:
        sent.add(bucket.buffer().untyped_storage().data_ptr())
        return real(bucket, on_last)

    @contextmanager
    def micro_batch(last: bool) -> Iterator[None]:
        with shared(last):
            yield
        places = [w.grad.untyped_storage().data_ptr() for w in weights if w.grad is not None]
        apart.append(len(set(places) - sent))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replicas, "_send", send)
        patch.setattr(components.replicas, "micro_batch", micro_batch)
        for _ in range(3):
            loop.step()
    assert len(sent) > 4 and apart[-2:] == [0, 0] and apart[0] > 0


def memory_is_freed_at_once(folder: Path) -> None:
    """Replicas are in no cycle of references; torch's DDP is in some."""
    job = small_job(folder, *COMMON, *TWO)
    for is_graph, dtype in ((True, None), (False, torch.float64)):
        model = torch.nn.Linear(2, 2)
        for weight in model.parameters():
            weight.grad_dtype = dtype
        engine = replicas.TorchReplicas(job.parallel, world_of(job.parallel), model, is_graph)
        with engine.micro_batch(True):
            engine.model(torch.ones(1, 2)).sum().backward()
        seen = [ref(each) for each in (engine, model, *model.parameters())]
        gc.disable()
        try:
            del engine, model, weight
            assert [each() for each in seen] == [None] * 4
        finally:
            gc.enable()


def test_two_ranks() -> None:
    run_on_ranks(
        WORLD,
        equal_to_one_rank,
        weights_are_gathered_as_often_as_it_says,
        gradients_are_summed_while_they_are_computed,
        gradients_lie_in_buckets,
        memory_is_freed_at_once,
    )


def test_inner_units_come_first() -> None:
    """FSDP2 gives an outer unit what no inner one has taken."""
    block = [nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))) for _ in range(3)]
    model = nn.Sequential(nn.Embedding(2, 2), *block)
    layers = [(str(number), each) for number, each in enumerate(block, 1)]
    names = {module: name for name, module in model.named_modules()}
    config = resolve(Sharding(units=(r"1\.1\.0", r"1\..*", "0"), layers_per_unit=2))
    found = [[names[each] for each in unit] for unit in units_of(config, model, layers)]
    assert found == [["1.1.0"], ["1.0"], ["1.1"], ["1", "2"], ["3"], ["0"]]
    wrong = resolve(Sharding(units=("1", "nothing")))
    with refused():
        units_of(wrong, model, layers)


@pytest.mark.parametrize(
    "flags",
    [
        ("parallel.sharding.units=[nothing]",),
        ("parallel.sharding.units=['layers.0']",),
        ("parallel.sharding.units=[output]",),
        ("parallel.sharding.units=[embedding]", "model.tie_embeddings=true"),
        ("parallel.sharding.units=['.*experts.0']", "model.moe={experts=4, packed=false}"),
        ("parallel.sharding.units=['(']",),
        ("parallel.sharding.replicated=['(']",),
        ("parallel.sharding.replicated=[nothing]",),
        ("parallel.sharding.replicated=[experts]", "model.moe={experts=4}", "parallel.expert=2"),
        ("parallel.shard=1", "parallel.sharding.layers_per_unit=2"),
        ("parallel.bucket_size=2",),
    ],
    ids=" ".join,
)
def test_refused(tmp_path: Path, flags: tuple[str, ...]) -> None:
    with refused(ConfigError):
        small_job(tmp_path, *RANKS, *flags)
