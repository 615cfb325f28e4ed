"""The highest scores, of all experts or of those in the best groups."""

import torch
from torch import Tensor


def choose(scores: Tensor, top_k: int, groups: int, top_groups: int, rank_by: int) -> Tensor:
    """Choose experts for each token.

    With groups, the experts lie in `groups` equal parts, one after the other. A token first takes
    the `top_groups` groups whose `rank_by` best experts have the highest sum of scores, then the
    best experts in these (group-limited routing, DeepSeek-V2 and V3).
    """
    scores = scores.detach()
    if top_groups < groups:
        grouped = scores.unflatten(1, (groups, -1))
        best = grouped.topk(min(rank_by, grouped.shape[2]), dim=2).values.sum(dim=2)
        taken = torch.zeros_like(best, dtype=torch.bool)
        taken = taken.scatter(1, best.topk(top_groups, dim=1).indices, True)
        scores = grouped.masked_fill(~taken.unsqueeze(2), float("-inf")).flatten(1)
    return scores.topk(top_k, dim=1).indices
