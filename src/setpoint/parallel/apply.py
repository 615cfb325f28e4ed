"""What each rank holds of a model, and how the ranks' gradients become one: one axis at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn

from setpoint.config import SetpointError
from setpoint.parallel.context import divide_sequences
from setpoint.parallel.experts import ExpertRanks, divide_experts, expert_ranks, shard_experts
from setpoint.parallel.pipeline import Stage, keep_stages
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
    given: Any = {"ignored_params": whole} if whole else {}
    for _, unit in [*layers, ("", model)]:
        # What lies around the layers is needed again at once, and a stage by the next micro-batch.
        is_layer = unit is not model and not isinstance(model, Stage)
        reshard = is_layer if config.reshard is None else config.reshard
        fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard, **given)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)


BUCKET = 25 * 2**20
"""Bytes of gradients that are summed at a time, as DDP does."""


class Replicas:
    """Keeps the ranks of a job at one set of weights; one rank alone has nothing to do.

    Arguments:
        model: whose parameters are divided already where they are to be.
        is_graph: whether backward is one graph, in the middle of which DDP could not begin to sum.
    """

    def __init__(self, world: World, model: nn.Module, is_graph: bool = False) -> None:
        self.model = self.whole = model
        """What is called in training, and the model that it calls."""
        self._is_sharded = hasattr(model, "set_requires_all_reduce")
        self._sums = False
        self._tensor = world.group("tensor")
        """The ranks that divide matrices; None where none do."""
        self._terms = [] if self._tensor is None else list(summed_gradients(model))
        if world.size > 1 and not self._is_sharded and not _is_divided(world):
            # DDP takes gradients in the dtype of the weights only.
            self._sums = is_graph or any(
                weight.grad_dtype != weight.dtype for weight in _trained(model)
            )
            if not self._sums:
                self.model = _replicated(model, world)

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
            yield
        elif model is self.whole:
            yield
            if last and self._sums:
                _sum_gradients(model)
        elif last:
            yield
        else:
            with model.no_sync():
                yield


def _is_divided(world: World) -> bool:
    """Whether the ranks hold parts of one copy of the model, or FSDP2 keeps copies of stages."""
    return world.degrees["pipeline"] > 1 or world.degrees["tensor"] == world.size


def _replicated(model: nn.Module, world: World) -> nn.Module:
    """A model whose gradients are summed over all ranks (DDP)."""
    from torch.nn.parallel import DistributedDataParallel

    place = [world.device] if world.device.type == "cuda" else None
    # Buffers are moved by the same sums on all ranks; torch 2.13 has another name for this.
    names = signature(DistributedDataParallel.__init__).parameters
    kept: Any = {
        "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers": False
    }
    whole = DistributedDataParallel(model, device_ids=place, **kept)
    # DDP by itself would divide by the number of ranks.
    whole.register_comm_hook(None, lambda _, bucket: _sum(bucket.buffer()))
    return whole


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [weight for weight in model.parameters() if weight.requires_grad]


@torch.no_grad()
def _sum_gradients(model: nn.Module) -> None:
    """Sum the gradients of all ranks, in parts of BUCKET bytes."""
    held: list[Tensor] = []
    for weight in _trained(model):
        if weight.grad is None:  # an expert that no token of this rank has met
            weight.grad = torch.zeros_like(weight, dtype=weight.grad_dtype)
        held.append(weight.grad)
        if sum(each.nbytes for each in held) >= BUCKET:
            _sum_together(held)
            held = []
    if held:
        _sum_together(held)


def _sum_together(gradients: list[Tensor]) -> None:
    together = torch.cat([each.reshape(-1) for each in gradients])
    distributed.all_reduce(together)
    parts = together.split([each.numel() for each in gradients])
    for each, part in zip(gradients, parts, strict=True):
        each.copy_(part.view_as(each))


def _sum(gradients: Tensor) -> torch.futures.Future[Tensor]:
    work = distributed.all_reduce(gradients, async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])
