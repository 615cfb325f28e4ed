"""What a row of metrics says about experts."""

from __future__ import annotations

import torch

from setpoint.shapes.outcome import Routing


def expert_metrics(routing: Routing) -> dict[str, float]:
    """Summarize how tokens chose experts.

    Returns:
        numbers by name. expert_load: the load of the busiest expert over the mean load, as a mean
        over layers; expert_load_worst: in the worst layer (1 is an even load; Wang et al., 2024,
        subtract 1 and call it MaxVio). experts_idle: experts that no token chose, in all layers.
        expert_drops: the share of choices that no expert took. balance_loss, sequence_balance_loss
        and router_z_loss: means over layers, without their weights; the first two are 1 where the
        load is even.
    """
    counts, layers = routing.counts.double(), len(routing.counts)
    loads = counts.amax(dim=1) / counts.mean(dim=1).clamp(min=1e-9)
    # One transfer, as each waits for the device.
    values = torch.stack(
        [
            loads.mean(),
            loads.amax(),
            (counts == 0).sum().double(),
            routing.dropped.sum() / counts.sum().clamp(min=1),
            routing.balance.double() / layers,
            routing.sequence_balance.double() / layers,
            routing.z.double() / layers,
        ]
    ).tolist()
    names = (
        "expert_load",
        "expert_load_worst",
        "experts_idle",
        "expert_drops",
        "balance_loss",
        "sequence_balance_loss",
        "router_z_loss",
    )
    return dict(zip(names, values, strict=True))
