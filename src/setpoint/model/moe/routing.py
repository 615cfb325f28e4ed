"""What a layer of experts reports beside its output, and what a model makes of all reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from setpoint.shapes.outcome import Routing

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig
    from setpoint.model.moe.config import MoE


class LayerRouting(NamedTuple):
    """How the tokens of one layer chose experts in one forward pass.

    It is returned, not kept on the layer: a layer that is recomputed in backward
    reports once, and a pipeline can hand the report on.

    Arguments:
        counts: (E,) int64 how often each expert was chosen, also where it took no more.
        dropped: () int64 how many of these choices no expert took.
        balance, sequence_balance, z: () fp32 the terms of the loss, without their weights; they
            carry gradients.
    """

    counts: Tensor
    dropped: Tensor
    balance: Tensor
    sequence_balance: Tensor
    z: Tensor


def combine(
    config: MoE | None, layers: Sequence[LayerRouting]
) -> tuple[Tensor | None, Routing | None]:
    """Make one report of those of all layers.

    Arguments:
        layers: the reports in the order of the layers; none where nothing is trained.

    Returns:
        what is added to the mean loss over tokens, an fp32 scalar, and the report without
        gradients. None for either that there is not.
    """
    if config is None or not layers:
        return None, None
    balance = torch.stack([layer.balance for layer in layers]).sum()
    sequence_balance = torch.stack([layer.sequence_balance for layer in layers]).sum()
    z = torch.stack([layer.z for layer in layers]).sum()
    weighted = [
        term * weight
        for term, weight in (
            (balance, config.balance_loss),
            (sequence_balance, config.sequence_balance_loss),
            (z, config.router_z_loss),
        )
        if weight
    ]
    auxiliary = torch.stack(weighted).sum() if weighted else None
    counts = torch.stack([layer.counts for layer in layers])
    dropped = torch.stack([layer.dropped for layer in layers])
    terms = (term.detach() for term in (balance, sequence_balance, z))
    return auxiliary, Routing(counts, dropped, *terms)


def placed(
    config: TransformerConfig, routing: Routing | None, layers: Iterable[int], device: torch.device
) -> Routing | None:
    """Put the report of a part of a model among the rows of the whole.

    Arguments:
        routing: of the layers with experts of the part; None where it has none.
        layers: numbers of the layers of the part.

    Returns:
        with zeros for the layers of other parts; None for models without experts.
    """
    moe = config.moe
    whole = 0 if moe is None else moe.layers_with_experts(config.layers)
    if moe is None or not whole:
        return None
    counts = torch.zeros(whole, moe.experts, dtype=torch.int64, device=device)
    dropped = torch.zeros(whole, dtype=torch.int64, device=device)
    if routing is None:
        return Routing(counts, dropped, *torch.zeros(3, device=device))
    rows = [moe.layers_with_experts(layer) for layer in layers if moe.has_experts(layer)]
    counts[rows], dropped[rows] = routing.counts, routing.dropped
    return routing._replace(counts=counts, dropped=dropped)


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
