"""What all ranks chose of a model's experts, and how the biases of its routers follow."""

from __future__ import annotations

import torch
from torch import nn

from setpoint.model.moe.layer import update_biases
from setpoint.parallel.world import World
from setpoint.shapes.outcome import Routing


def balance_experts(model: nn.Module, routing: Routing, done: float, world: World) -> Routing:
    """Move the biases of routers once for a step, from what all micro-batches of all ranks chose.

    Arguments:
        routing: of this rank; its means are the rank's parts of means over the global batch.
        done: how much of the run is done, for the schedule of the bias rate.

    Returns:
        the routing of all ranks, the same on each.
    """
    routing = sum_over_ranks(routing, world)
    update_biases(model, routing.counts, done)
    return routing


def sum_over_ranks(routing: Routing, world: World) -> Routing:
    """Add up what all ranks chose.

    Returns:
        that of all ranks; the routing itself where there is one.
    """
    if world.size == 1:
        return routing
    counts, dropped, *means = routing
    whole, parts = torch.cat((counts, dropped.unsqueeze(1)), dim=1), torch.stack(means)
    if not world.gives_loss:  # another rank has chosen the same
        whole, parts = torch.zeros_like(whole), torch.zeros_like(parts)
    world.sum(whole, parts)
    return Routing(whole[:, :-1], whole[:, -1], *parts)
