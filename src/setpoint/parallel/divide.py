"""Division of a model among ranks, one axis after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from setpoint.config import SetpointError
from setpoint.parallel.expert_ranks import ExpertRanks, divide_experts, expert_ranks, shard_experts
from setpoint.parallel.pipeline import Stage, keep_stages
from setpoint.parallel.sharding import shard
from setpoint.parallel.tensor import divide_matrices, share_memory
from setpoint.parallel.world import sequence_parts
from setpoint.shapes.batch import ContextGroups
from setpoint.shapes.protocols import HasExperts, SequenceDivisible

if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    from setpoint.parallel.config import Parallel
    from setpoint.parallel.world import World
    from setpoint.shapes.parameter import StagePart


def divide(
    config: Parallel,
    world: World,
    model: nn.Module,
    layers: Sequence[tuple[str, nn.Module]],
    policy: Callable[[], MixedPrecisionPolicy],
    exchange: Callable[[ExpertRanks], Any],
    gathers_logits: bool = True,
    sizes: Sequence[StagePart] | None = None,
) -> list[Stage]:
    """Reduce a model to the part of this rank, one axis after another in this order.

    Arguments:
        model: equal on all ranks; on the meta device, without values.
        layers: its repeated layers, by qualified name.
        policy: returns the dtypes in which weights are gathered and gradients reduced.
        exchange: returns the dispatcher of tokens to experts on other ranks.
        gathers_logits: whether losses receive logits for the whole vocabulary if ranks divide it.
        sizes: sizes of the parts, for balancing stages; None: their parameter counts.

    Returns:
        the pipeline stages of this rank, which share the model's modules; empty without a pipeline.

    Raises:
        SetpointError: the model cannot be divided along an axis.
    """
    stages: list[Stage] = []
    if world.mesh is None:
        return stages
    if world.degrees["pipeline"] > 1:
        count, place = world.degrees["pipeline"], world.coordinates["pipeline"]
        stages = keep_stages(config.pipelining, model, count, place, sizes)
    ignored: set[nn.Parameter] = set()
    if config.divides_experts:
        if not isinstance(model, HasExperts):
            raise SetpointError(
                f"parallel.expert: a {type(model).__name__} has no method use_experts(), which "
                f"divides experts\nValid: 1, or a model with this method"
            )
        ranks = expert_ranks(config, world)
        experts = model.use_experts(exchange(ranks))
        divide_experts(ranks, experts)
        if config.shards_experts:
            shard_experts(config, ranks, experts, policy())
        else:
            ignored = {parameter for part in experts for parameter in part.module.parameters()}
    for part in [stage.model for stage in stages] or [model]:
        if world.degrees["tensor"] > 1:
            divide_matrices(part, world.mesh["tensor"], config.sequence_parallel, gathers_logits)
            if config.async_tensor_parallel:
                share_memory(world.mesh["tensor"])
        divide_sequences(config, world, part)
    if config.uses_fsdp:
        for unit in stages or [model]:
            modules = set(unit.modules())
            inside = [(name, layer) for name, layer in layers if layer in modules]
            shard(config, world.mesh, unit, inside, policy(), ignored)
    return stages


def divide_sequences(config: Parallel, world: World, model: nn.Module) -> None:
    """Set up attention over the ranks that shard sequences, if any.

    Raises:
        SetpointError: the model supports only whole sequences.
    """
    parts = sequence_parts(config, world)
    if parts.size == 1:
        return
    # Created by all ranks, regardless of their models.
    groups = ContextGroups(
        parts, world.group("ring"), world.group("ulysses"), world.group("ring", "ulysses")
    )
    if not isinstance(model, SequenceDivisible):
        axis = "ring" if parts.ring > 1 else "ulysses"
        raise SetpointError(
            f"parallel.{axis} = {world.degrees[axis]}: a {type(model).__name__} needs whole "
            f"sequences, but this axis divides them\nValid: 1, or a model with use_context(groups)"
        )
    model.use_context(groups)
