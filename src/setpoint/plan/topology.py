"""How a job is laid over ranks, in numbers, and what the stages of its pipeline hold."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from setpoint.config import SetpointError
from setpoint.memory.config import Full, Operators, Parts
from setpoint.model.parts import part_names
from setpoint.parallel.config import AXES, CONTEXT
from setpoint.parallel.pipelining import SCHEDULES, balanced, ranks_of_stages
from setpoint.plan.workload import Workload

if TYPE_CHECKING:
    from setpoint.train.config import Job


class Topology(NamedTuple):
    """How a job is laid over ranks, and what of a step each of them has.

    Arguments:
        micro_size: sequences of a micro-batch of a rank.
        accumulation: micro-batches of a step.
        recompute: `none`, `full`, `parts:` or `operators:` and what is recomputed, or saved,
            joined by "+".
        every: of how many layers one is recomputed.
        reshard: as `parallel.reshard`.
        layers_per_unit: that FSDP2 gathers together.
        accumulation_of: as `parallel.sharding.accumulation`.
        bucket: bytes of gradients that replicas sum in one message.
    """

    pipeline: int = 1
    replicate: int = 1
    shard: int = 1
    ring: int = 1
    ulysses: int = 1
    tensor: int = 1
    expert: int = 1
    expert_tensor: int = 1
    micro_size: int = 1
    accumulation: int = 1
    recompute: str = "none"
    every: int = 1
    schedule: str = "1f1b"
    stages_per_rank: int = 1
    split: tuple[tuple[str, ...], ...] | None = None
    sequence_parallel: bool = False
    loss_parallel: bool = True
    reshard: bool | int | None = None
    shard_over_context: str = "all"
    layers_per_unit: int = 1
    accumulation_of: str = "sharded"
    bucket: int = 25 * 2**20

    @classmethod
    def of(cls, job: Job) -> Topology:
        """The topology that a job has."""
        parallel, batch = job.parallel, job.batch
        pipelining, ranks = parallel.pipelining, parallel.degrees["pipeline"]
        section = job.memory.activation_checkpointing
        return cls(
            **parallel.degrees,
            expert=parallel.expert,
            expert_tensor=parallel.expert_tensor,
            micro_size=batch.micro_size,
            accumulation=batch.accumulation,
            recompute=policy_of(section),
            every=1 if section is None else section.every,
            schedule=pipelining.schedule,
            stages_per_rank=pipelining.stages(ranks) // ranks if ranks > 1 else 1,
            split=pipelining.split if ranks > 1 else None,
            sequence_parallel=parallel.sequence_parallel,
            loss_parallel=parallel.loss_parallel is not False,
            reshard=parallel.reshard,
            shard_over_context=parallel.shard_over_context,
            layers_per_unit=parallel.sharding.layers_per_unit,
            accumulation_of=parallel.sharding.accumulation,
            bucket=int(parallel.bucket_size * 2**20),
        )

    @property
    def degrees(self) -> dict[str, int]:
        """The degree of each axis, in the order of AXES."""
        return {axis: getattr(self, axis) for axis in AXES}

    @property
    def world_size(self) -> int:
        """All ranks."""
        return prod(self.degrees.values())

    @property
    def data_ranks(self) -> int:
        """The number of ranks that read different data."""
        return self.replicate * self.shard

    @property
    def context(self) -> int:
        """The number of ranks that divide a sequence."""
        return self.ring * self.ulysses

    @property
    def sharding_axes(self) -> tuple[str, ...]:
        """The axes whose ranks divide weights by FSDP2, as `Parallel.sharding_axes`."""
        within = {"all": CONTEXT, "none": ()}.get(
            self.shard_over_context, (self.shard_over_context,)
        )
        return ("shard", *within)

    @property
    def copying_axes(self) -> tuple[str, ...]:
        """The axes along which weights are the same."""
        within = {"pipeline", "tensor", *self.sharding_axes}
        return tuple(axis for axis in AXES if axis not in within)

    @property
    def shards(self) -> int:
        """The number of ranks that divide one copy of the weights by FSDP2."""
        return prod(getattr(self, axis) for axis in self.sharding_axes)

    @property
    def copies(self) -> int:
        """The number of copies of the weights that FSDP2 or DDP keep alike."""
        return prod(getattr(self, axis) for axis in self.copying_axes)

    @property
    def divides_experts(self) -> bool:
        """Whether ranks hold parts of the experts by other axes than all other weights."""
        return self.expert * self.expert_tensor > 1

    @property
    def expert_shards(self) -> int:
        """The number of ranks that divide each expert by FSDP2."""
        ranks = self.shard * self.ring * self.ulysses * self.tensor
        return max(1, ranks // (self.expert * self.expert_tensor))

    @property
    def expert_replicas(self) -> int:
        """The number of copies of each expert, as `Parallel.expert_replicas`."""
        ranks = self.shard * self.ring * self.ulysses * self.tensor
        return self.replicate // max(1, self.expert * self.expert_tensor // ranks)

    @property
    def shards_experts(self) -> bool:
        """Whether several ranks share each expert by FSDP2, as `Parallel.shards_experts`."""
        return self.divides_experts and self.expert_shards * self.expert_replicas > 1

    @property
    def uses_fsdp(self) -> bool:
        """Whether FSDP2 holds the weights, as `Parallel.uses_fsdp`."""
        within = self.pipeline * self.tensor
        if self.shards > 1 or 1 < within < self.world_size:
            return True
        return self.divides_experts and (self.expert_shards > 1 or self.copies > 1)

    @property
    def accumulates_whole(self) -> bool:
        """Whether FSDP2 reduces gradients once a step, as `Parallel.accumulates_whole`."""
        several = self.accumulation_of == "unsharded" and self.accumulation > 1
        return self.uses_fsdp and (several or self.pipeline > 1)

    @property
    def stages(self) -> int:
        """Of the pipeline, on all its ranks; 1 without."""
        return self.pipeline * self.stages_per_rank

    def overrides(self) -> list[str]:
        """What is typed behind a command to get it, a value a text; nothing that has no effect."""
        found = [f"parallel.{axis}={degree}" for axis, degree in self.degrees.items()]
        if self.divides_experts:
            found += [
                f"parallel.expert={self.expert}",
                f"parallel.expert_tensor={self.expert_tensor}",
            ]
        if self.tensor > 1:
            found.append(f"parallel.sequence_parallel={str(self.sequence_parallel).lower()}")
        if self.pipeline > 1:
            found.append(f"parallel.pipelining.schedule={self.schedule}")
            if SCHEDULES[self.schedule].is_looped:
                found.append(f"parallel.pipelining.stages_per_rank={self.stages_per_rank}")
        if self.shards > 1 and self.reshard is not None:
            found.append(f"parallel.reshard={str(self.reshard).lower()}")
        found += [
            f"batch.micro_size={self.micro_size}",
            f"batch.accumulation={self.accumulation}",
            *_policy_overrides(self.recompute, self.every),
        ]
        return [f"--{each}" for each in found]


def policy_of(section: Any) -> str:
    """Name the kind of activation checkpointing of a job; see `Topology.recompute`."""
    match section:
        case None:
            return "none"
        case Full():
            return "full"
        case Parts():
            return "parts:" + "+".join(sorted(set(section.parts)))
        case Operators():
            every = f"/{section.matmul_every}" if section.matmul_every > 1 else ""
            return "operators:" + "+".join(sorted(set(section.save))) + every
        case _:
            return type(section).__name__


def saves_exchange(policy: str) -> bool:
    """Whether what experts exchange is sent once, though layers are recomputed."""
    name, _, what = policy.partition(":")
    if name == "parts":
        return "feed_forward" not in what
    return name == "operators" and "exchange" in what


def _policy_overrides(policy: str, every: int) -> list[str]:
    path = "memory.activation_checkpointing"
    name, _, what = policy.partition(":")
    if name == "none":
        return [f"{path}=null"]
    names = ", ".join(what.partition("/")[0].split("+"))
    found = [f"{path}.type={name}"]
    if name in ("parts", "operators"):
        found.append(f"{path}.{'parts' if name == 'parts' else 'save'}=[{names}]")
    return [*found, *([f"{path}.every={every}"] if every > 1 else [])]


def tokens_of(workload: Workload, topology: Topology) -> int:
    """Tokens of a micro-batch that a rank computes with, before `tensor` divides any."""
    return topology.micro_size * workload.length // topology.context


@lru_cache(maxsize=4096)
def stages_of(workload: Workload, topology: Topology) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Cut a model into the stages of a pipeline, as the builder does.

    Returns:
        for each rank of the pipeline the parts, by their numbers in `Workload.order`, of each of
        its stages, in the order of the model.
    """
    ranks, count = topology.pipeline, topology.stages
    if ranks == 1:
        return ((tuple(range(len(workload.order))),),)
    is_v = SCHEDULES[topology.schedule].is_v
    cut = _cut(workload, count, topology.split)
    places = ranks_of_stages(ranks, count, is_v)
    return tuple(
        tuple(parts for parts, place in zip(cut, places, strict=True) if place == rank)
        for rank in range(ranks)
    )


@lru_cache(maxsize=256)
def _cut(
    workload: Workload, count: int, split: tuple[tuple[str, ...], ...] | None
) -> tuple[tuple[int, ...], ...]:
    if workload.kinds[0].name == "model":
        raise SetpointError(
            "parallel.pipeline: how the model is cut into stages is known when it is built only\n"
            "Valid: 1, or a model of type = transformer"
        )
    names = part_names(workload.layers)
    at = {name: number for number, name in enumerate(names)}
    if split is not None:
        return tuple(tuple(at[name] for name in stage) for stage in split)
    if count > len(names):
        raise SetpointError(
            f"parallel.pipeline: the model has {len(names)} parts, and there are {count} stages\n"
            f"Valid: {len(names)} stages or fewer"
        )
    sizes = [
        workload.kinds[kind].size._replace(name=name)
        for name, kind in zip(names, workload.order, strict=True)
    ]
    return tuple(tuple(at[name] for name in stage) for stage in balanced(sizes, count))
