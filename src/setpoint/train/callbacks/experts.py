"""Balances the load of experts, and tells how even it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import distributed

from setpoint.model.moe.bias import update_biases
from setpoint.model.moe.metrics import expert_metrics
from setpoint.shapes.outcome import Routing
from setpoint.train.callback import Callback
from setpoint.train.step.position import share_done

if TYPE_CHECKING:
    from setpoint.train.step.loop import Loop, StepResult


class ExpertsCallback(Callback):
    """Moves the biases of routers once per update, from what all micro-batches of all ranks chose.

    Runs before evaluation and saving, so that both have the biases that belong to the weights. Does
    nothing for models without experts.
    """

    def __init__(self) -> None:
        self.routing: Routing | None = None

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Move the biases."""
        if result.routing is None:
            return
        self.routing = sum_over_ranks(result.routing)
        at = share_done(loop.job.horizon(), loop.position)
        update_biases(loop.parts.model, self.routing.counts, at)

    def metrics(self) -> dict[str, float]:
        """Summarize the load of the last update.

        Returns:
            numbers by name; none for models without experts.
        """
        return {} if self.routing is None else expert_metrics(self.routing)


def sum_over_ranks(routing: Routing) -> Routing:
    """Add up what all ranks chose.

    Arguments:
        routing: of this rank; its means are the rank's parts of means over the global batch.

    Returns:
        that of all ranks, the same on each; the routing itself where there is one.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return routing
    counts, dropped, *means = routing
    whole, parts = torch.cat((counts, dropped.unsqueeze(1)), dim=1), torch.stack(means)
    distributed.all_reduce(whole)
    distributed.all_reduce(parts)
    return Routing(whole[:, :-1], whole[:, -1], *parts)
