"""From the experts that each token chose to the tokens that each expert works on."""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Assignments(NamedTuple):
    """The rows that experts work on: first all of expert 0, then of expert 1, and so on.

    Arguments:
        slots: (R,) where each row stands in the flattened (T, k) choices; within an expert in the
            order of the tokens.
        chosen: (E,) int64 how often each expert was chosen, also where it takes no more.
        taken: (E,) int64 how many of these choices it takes.
    """

    slots: Tensor
    ends: Tensor
    chosen: Tensor
    taken: Tensor


def assign(
    experts: Tensor,
    count: int,
    capacity_factor: float | None = None,
    valid: Tensor | None = None,
) -> Assignments:
    """Sort choices by expert.

    Padding is never counted. Without a capacity it is computed like any token, as every other
    layer does, so that all shapes are known and nothing waits for the device.

    Arguments:
        capacity_factor: each expert takes ceil(T k / E * capacity_factor) choices, those of the
            earliest tokens, where T counts the tokens that are no padding; None: all.
        valid: (T,) False for padding; None: there is none.
    """
    top_k = experts.shape[1]
    # Stable, so that the earliest tokens come first, and every run sorts alike.
    ids, slots = experts.flatten().sort(stable=True)
    ends = torch.searchsorted(ids, torch.arange(count, device=ids.device), right=True)
    if valid is None:
        places = torch.arange(1, len(ids) + 1, device=ids.device)
        chosen = _differences(ends)
    else:
        valid = valid.repeat_interleave(top_k).index_select(0, slots)
        places = valid.cumsum(0)
        chosen = _differences(_padded(places).index_select(0, ends))
    if capacity_factor is None:
        return Assignments(slots, ends, chosen, chosen)
    tokens = len(experts) if valid is None else places[-1] / top_k
    limit = capacity(tokens, top_k, count, capacity_factor)
    before = chosen.cumsum(0) - chosen
    kept = places - before.index_select(0, ids) <= limit
    if valid is not None:
        kept &= valid
    taken = chosen.clamp(max=limit)
    return Assignments(slots[kept], taken.cumsum(0), chosen, taken)


def capacity(tokens: int | Tensor, top_k: int, experts: int, factor: float) -> int | Tensor:
    """Compute how many choices an expert takes: ceil(tokens * top_k / experts * factor).

    Arguments:
        tokens: how many there are; a tensor where only the device knows.
        factor: 1.0 is just enough for an even load.

    Returns:
        a whole number, a tensor if `tokens` is one.
    """
    # Rounded first: 10 * 1.1 is a little above 11, and would be 12.
    if isinstance(tokens, Tensor):
        return (tokens.double() * (top_k * factor) / experts).round(decimals=6).ceil().long()
    return math.ceil(round(tokens * (top_k * factor) / experts, 6))


def _padded(sums: Tensor) -> Tensor:
    return torch.cat((sums.new_zeros(1), sums))


def _differences(ends: Tensor) -> Tensor:
    return ends.diff(prepend=ends.new_zeros(1))
