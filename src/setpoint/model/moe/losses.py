"""Router losses, and routing reports of a layer, of a model, and as metrics.

With T tokens that count, E experts and k choices per token: f_i is the share of the T k choices
that expert i gets, without gradient, and P_i its mean score, where the scores of a token sum to
one. E * sum_i f_i P_i is 1 if either is uniform, and grows as load and scores concentrate on the
same experts.

If several ranks divide the sequences, counts are of whole ones, and each rank's losses are its
parts of a sum: `tokens` is the number of tokens that count on all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from setpoint.shapes.outcome import Routing

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig


def balance_loss(
    scores: Tensor, counts: Tensor, valid: Tensor | None = None, tokens: Tensor | None = None
) -> Tensor:
    """Compute E * sum_i f_i P_i of each group of tokens, and the mean over tokens.

    One group is a batch (Switch Transformer, Fedus et al., 2021), a part of it, or a sequence
    (complementary sequence-wise balance loss, DeepSeek-V3, 2024).

    Arguments:
        scores: (groups, T, E).
        counts: (groups, E) choices of each expert; over all ranks of the sequences.
        valid: (groups, T) False for padding, which takes no part; None if absent.
        tokens: number on all ranks of the sequences; None: those of this rank are all.

    Returns:
        A scalar; 0 if no token counts.
    """
    share = counts.to(scores.dtype) / counts.sum(dim=1, keepdim=True).clamp(min=1)
    experts = scores.shape[-1]
    if valid is None and tokens is None:
        return experts * (share * scores.mean(dim=1)).sum(dim=1).mean()
    # A group weighs as many tokens as it has: sum_g n_g L_g / sum_g n_g, where n_g P_g is a sum.
    if valid is not None:
        scores = scores * valid.unsqueeze(-1)
    return experts * (share * scores.sum(dim=1)).sum() / _count(valid, tokens)


def z_loss(logits: Tensor, valid: Tensor | None = None, tokens: Tensor | None = None) -> Tensor:
    """Compute the mean of log(sum(exp(logits)))^2 (ST-MoE, Zoph et al., 2022).

    Arguments:
        logits: (B, S, E).
        valid: (B, S) False for padding, which takes no part; None if absent.
        tokens: number on all ranks of the sequences; None: those of this rank are all.

    Returns:
        A scalar; 0 if no token counts.
    """
    squares = torch.logsumexp(logits, dim=-1).square()
    if valid is None and tokens is None:
        return squares.mean()
    return (squares if valid is None else squares * valid).sum() / _count(valid, tokens)


def _count(valid: Tensor | None, tokens: Tensor | None) -> Tensor:
    count = tokens if valid is None or tokens is not None else valid.sum()
    assert count is not None
    return count.clamp(min=1)


def sequence_counts(experts: Tensor, count: int, valid: Tensor | None) -> Tensor:
    """Count the choices of each expert in each sequence.

    Arguments:
        experts: (B, S, k) chosen ones of `count`.

    Returns:
        (B, E) int64.
    """
    # Not by adding up at indices: a token chooses an expert once at most.
    chosen = experts.new_zeros((*experts.shape[:2], count)).scatter(2, experts, 1)
    return (chosen if valid is None else chosen * valid.unsqueeze(-1)).sum(dim=1)


class LayerRouting(NamedTuple):
    """Routing of the tokens of one layer in one forward pass.

    It is returned, not kept on the layer: a layer that is recomputed in backward
    reports once, and a pipeline can hand the report on.

    Arguments:
        counts: (E,) int64 choices of each expert, dropped ones included.
        dropped: () int64 number of dropped choices.
        balance, sequence_balance, z: () fp32 the terms of the loss, without their weights; they
            carry gradients.
    """

    counts: Tensor
    dropped: Tensor
    balance: Tensor
    sequence_balance: Tensor
    z: Tensor


def combine(
    config: TransformerConfig, layers: Mapping[int, LayerRouting], device: torch.device
) -> tuple[Tensor | None, Routing]:
    """Combine the reports of the layers of a model, or of a pipeline stage of it.

    Arguments:
        config: of a model with experts.
        layers: reports by the number of the layer.

    Returns:
        the fp32 scalar to add to the mean loss over tokens, None where all weights are 0; and the
        report without gradients, of zeros for layers of other stages.
    """
    moe = config.moe
    assert moe is not None
    layers_with_experts = moe.layers_with_experts(config.layers)
    if len(layers) < layers_with_experts:  # a stage
        counts = torch.zeros(layers_with_experts, moe.experts, dtype=torch.int64, device=device)
        dropped = torch.zeros(layers_with_experts, dtype=torch.int64, device=device)
        if not layers:
            return None, Routing(counts, dropped, *torch.zeros(3, device=device))
        for layer, report in layers.items():
            row = moe.layers_with_experts(layer)
            counts[row], dropped[row] = report.counts, report.dropped
    else:
        counts = torch.stack([report.counts for report in layers.values()])
        dropped = torch.stack([report.dropped for report in layers.values()])
    balance = torch.stack([report.balance for report in layers.values()]).sum()
    sequence_balance = torch.stack([report.sequence_balance for report in layers.values()]).sum()
    z = torch.stack([report.z for report in layers.values()]).sum()
    weighted = [
        term * weight
        for term, weight in (
            (balance, moe.balance_loss),
            (sequence_balance, moe.sequence_balance_loss),
            (z, moe.router_z_loss),
        )
        if weight
    ]
    auxiliary = torch.stack(weighted).sum() if weighted else None
    terms = (term.detach() for term in (balance, sequence_balance, z))
    return auxiliary, Routing(counts, dropped, *terms)


def expert_metrics(routing: Routing) -> dict[str, float]:
    """Summarize the routing of a step.

    Returns:
        numbers by name. expert_load: the load of the busiest expert over the mean load, as a mean
        over layers; expert_load_worst: in the worst layer (1 is an even load; Wang et al., 2024,
        subtract 1 and call it MaxVio). experts_idle: experts that no token chose, in all layers.
        expert_drops: the share of choices that were dropped. balance_loss, sequence_balance_loss
        and router_z_loss: means over layers, without their weights; the first two are 1 where the
        load is even.
    """
    counts, layers = routing.counts.double(), len(routing.counts)
    loads = counts.amax(dim=1) / counts.mean(dim=1).clamp(min=1e-9)
    metrics = {
        "expert_load": loads.mean(),
        "expert_load_worst": loads.amax(),
        "experts_idle": (counts == 0).sum().double(),
        "expert_drops": routing.dropped.sum() / counts.sum().clamp(min=1),
        "balance_loss": routing.balance.double() / layers,
        "sequence_balance_loss": routing.sequence_balance.double() / layers,
        "router_z_loss": routing.z.double() / layers,
    }
    # One transfer, as each waits for the device.
    values = torch.stack(list(metrics.values())).tolist()
    return dict(zip(metrics, values, strict=True))
