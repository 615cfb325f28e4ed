"""Balance without a loss: the bias of an expert falls while it is overloaded, and rises else."""

from __future__ import annotations

import math

from torch import Tensor, nn

from setpoint.model.moe.layer import MoELayer

# The share of the run over which linear_warmup rises.
WARMUP = 0.1


def update_biases(model: nn.Module, counts: Tensor, schedule_at: float) -> None:
    """Move the biases of all routers by one step.

    b_i <- b_i + rate * sign(mean load - load_i) (auxiliary-loss-free load balancing, Wang et al.,
    2024; DeepSeek-V3): every bias moves by the same amount, whatever the error's size. To be called
    once per step, with the counts of its whole global batch.

    Arguments:
        schedule_at: how much of the horizon is over, from 0 to 1.
    """
    routers = [layer.router for layer in model.modules() if isinstance(layer, MoELayer)]
    if all(router.bias is None for router in routers):
        return
    error = counts.double().mean(dim=1, keepdim=True) - counts
    for router, signs in zip(routers, error.sign(), strict=True):
        if router.bias is not None:
            step = router.bias_rate * bias_factor(router.bias_schedule, schedule_at)
            router.bias.add_(signs.to(router.bias.device), alpha=step)


def bias_factor(schedule: str, at: float) -> float:
    """Compute what a schedule multiplies the rate by.

    Arguments:
        at: how much of the horizon is over, from 0 to 1.

    Returns:
        constant: 1; cosine_decay: (1 + cos(pi at)) / 2; linear_warmup: at / 0.1, and 1 from there.
    """
    if schedule == "cosine_decay":
        return (1 + math.cos(math.pi * at)) / 2
    if schedule == "linear_warmup":
        return min(1.0, at / WARMUP)
    return 1.0
