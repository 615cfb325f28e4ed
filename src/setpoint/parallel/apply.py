"""What each rank holds of a model, and how the ranks' gradients become one: one axis at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn

from setpoint.config import SetpointError
from setpoint.parallel.buckets import GradientSums
from setpoint.parallel.context import divide_sequences
from setpoint.parallel.experts import ExpertRanks, divide_experts, expert_ranks, shard_experts
from setpoint.parallel.pipeline import Stage, keep_stages
from setpoint.parallel.sharding import offloading, prefetch, units_of
from setpoint.parallel.tensor import divide_matrices, sum_over_tensor_ranks, summed_gradients
from setpoint.shapes.expert_parts import HasExperts

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy

    from setpoint.parallel.config import Parallel
    from setpoint.parallel.world import World
    from setpoint.shapes.stages import Part


def divide(
    config: Parallel,
    world: World,
    model: nn.Module,
    layers: Sequence[tuple[str, nn.Module]],
    policy: Callable[[], MixedPrecisionPolicy],
    exchange: Callable[[ExpertRanks], Any],
    gathers_logits: bool = True,
    sizes: Sequence[Part] | None = None,
) -> list[Stage]:
    """Leave this rank its part of a model: one axis after another, in this order.

    Arguments:
        model: the same on all ranks; on the meta device, where it has no values yet.
        layers: what it repeats, by qualified name.
        policy: gives the dtypes in which weights are gathered and gradients reduced.
        exchange: gives the way in which tokens reach experts on other ranks.
        gathers_logits: whether losses get those of the whole vocabulary, where ranks divide it.
        sizes: of the parts that stages are made of; None: by their parameters.

    Returns:
        the stages of a pipeline that this rank has, which hold the model's modules; none where the
        model is not cut.

    Raises:
        SetpointError: the model cannot be divided along an axis.
    """
    stages: list[Stage] = []
    if world.mesh is None:
        return stages
    if world.degrees["pipeline"] > 1:
        count, own = world.degrees["pipeline"], world.at["pipeline"]
        stages = keep_stages(config.pipelining, model, count, own, sizes)
    whole: set[nn.Parameter] = set()
    if config.divides_experts:
        if not isinstance(model, HasExperts):
            raise SetpointError(
                f"parallel.expert: a {type(model).__name__} has no use_experts, by which experts "
                f"are divided\nValid: 1, or a model that has it"
            )
        ranks = expert_ranks(config, world)
        experts = model.use_experts(exchange(ranks))
        divide_experts(ranks, experts)
        if config.shards_experts:
            shard_experts(config, ranks, experts, policy())
        else:
            whole = {each for part in experts for each in part.module.parameters()}
    for part in [stage.model for stage in stages] or [model]:
        if world.degrees["tensor"] > 1:
            divide_matrices(part, world.mesh["tensor"], config.sequence_parallel, gathers_logits)
        divide_sequences(config, world, part)
    if config.uses_fsdp:
        for unit in stages or [model]:
            held = set(unit.modules())
            inside = [(name, layer) for name, layer in layers if layer in held]
            shard(config, world.mesh, unit, inside, policy(), whole)
    return stages


def shard(
    config: Parallel,
    mesh: DeviceMesh,
    model: nn.Module,
    layers: Sequence[tuple[str, nn.Module]],
    policy: MixedPrecisionPolicy,
    whole: set[nn.Parameter],
) -> None:
    """Divide the parameters of a model among the ranks of the axis `shard` (FSDP2).

    Each layer is gathered and freed by itself; what lies around them is one more unit. Gradients
    are summed over all ranks, not averaged: the loss is divided by what all of them count.

    Arguments:
        whole: parameters that no other rank has anything of, and that stay as they are.
    """
    from torch.distributed.fsdp import FSDPModule, fully_shard

    # One axis is plain sharding; two are HSDP: shards within, copies across.
    mesh = mesh["replicate", "shard"] if config.copies > 1 else mesh["shard"]
    given: dict[str, Any] = {"mesh": mesh, "mp_policy": policy, **offloading(config.sharding, mesh)}
    if whole:
        given["ignored_params"] = whole
    cut = isinstance(model, Stage)
    part = model.model if isinstance(model, Stage) else model
    units = [*units_of(config.sharding, part, layers, is_part=cut), [model]]
    for unit in units:
        # What lies around the layers is needed again at once, and a stage by the next micro-batch.
        is_layer = unit != [model] and not cut
        reshard = is_layer if config.reshard is None else config.reshard
        modules = unit if len(unit) > 1 else unit[0]
        fully_shard(modules, reshard_after_forward=reshard, **given)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)
    prefetch(config.sharding, model, units)


class Replicas:
    """Keeps the ranks of a job at one set of weights; one rank alone has nothing to do.

    Arguments:
        model: whose parameters are divided already where they are to be.
        is_graph: whether backward is one graph, in the middle of which DDP could not begin to sum.
    """

    def __init__(
        self, config: Parallel, world: World, model: nn.Module, is_graph: bool = False
    ) -> None:
        self.model = self.whole = model
        """What is called in training, and the model that it calls."""
        self._is_sharded = hasattr(model, "set_requires_all_reduce")
        self._keeps = config.reshard is False
        self._tensor = world.group("tensor")
        """The ranks that divide matrices; None where none do."""
        self._terms = [] if self._tensor is None else list(summed_gradients(model))
        self._sums: GradientSums | None = None
        if world.size > 1 and not self._is_sharded and not _is_divided(world):
            size = int(config.bucket_size * 2**20)
            trained = [weight for weight in model.parameters() if weight.requires_grad]
            # DDP takes gradients in the dtype of the weights only.
            if is_graph or any(weight.grad_dtype != weight.dtype for weight in trained):
                self._sums = GradientSums(trained, size, overlaps=not is_graph)
            else:
                self.model = _replicated(model, world, config.bucket_size)

    @contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        """Run a micro-batch: gradients go to the other ranks after the last one of a step only.

        Shards are the exception: their gradients are divided among the ranks after each, so that no
        rank holds whole ones, and summed over the replicas at the last.
        """
        with self._shared(last):
            yield
        if last and self._tensor is not None:
            sum_over_tensor_ranks(self._terms, self._tensor)

    @contextmanager
    def _shared(self, last: bool) -> Iterator[None]:
        model: Any = self.model
        if self._is_sharded:
            model.set_requires_all_reduce(last)
            if self._keeps:
                model.set_reshard_after_backward(last)
            yield
        elif self._sums is not None:
            with self._sums.summing() if last else nullcontext():
                yield
        elif last or model is self.whole:
            yield
        else:
            with model.no_sync():
                yield

    def free(self) -> None:
        """Free the whole weights that a pass without gradients has left gathered.

        They would be taken for the weights of today, whatever has changed these since.
        """
        for module in self.whole.modules():
            if hasattr(module, "set_requires_all_reduce"):
                module.reshard()  # pyright: ignore[reportCallIssue]


def _is_divided(world: World) -> bool:
    """Whether the ranks hold parts of one copy of the model, or FSDP2 keeps copies of stages."""
    return world.degrees["pipeline"] > 1 or world.degrees["tensor"] == world.size


def _replicated(model: nn.Module, world: World, bucket_size: float) -> nn.Module:
    """A model whose gradients are summed over all ranks (DDP)."""
    from torch.nn.parallel import DistributedDataParallel

    place = [world.device] if world.device.type == "cuda" else None
    # Buffers are moved by the same sums on all ranks; torch 2.13 has another name for this.
    names = signature(DistributedDataParallel.__init__).parameters
    kept: Any = {
        "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers": False
    }
    whole = DistributedDataParallel(model, device_ids=place, bucket_cap_mb=bucket_size, **kept)
    # DDP by itself would divide by the number of ranks.
    whole.register_comm_hook(None, lambda _, bucket: _sum(bucket.buffer()))
    return whole


def _sum(gradients: Tensor) -> torch.futures.Future[Tensor]:
    work = distributed.all_reduce(gradients, async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])
