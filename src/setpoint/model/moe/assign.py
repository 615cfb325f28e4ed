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
        parts: None where the batch is one part.
    """

    slots: Tensor
    ends: Tensor
    chosen: Tensor
    taken: Tensor
    parts: "Parts | None" = None


class Parts(NamedTuple):
    """Chosen and taken by parts of the batch, where these are balanced each by itself.

    Arguments:
        chosen, taken: (E, parts) int64.
        ends: (E * parts,) where the rows of an expert and a part end.
    """

    chosen: Tensor
    taken: Tensor
    ends: Tensor


def assign(
    experts: Tensor,
    count: int,
    capacity_factor: float | None = None,
    valid: Tensor | None = None,
    parts: int = 1,
) -> Assignments:
    """Sort choices by expert.

    Padding is never counted. Without a capacity it is computed like any token, as every other
    layer does, so that all shapes are known and nothing waits for the device.

    Arguments:
        capacity_factor: each expert takes ceil(T k / E * capacity_factor) choices, those of the
            earliest tokens, where T counts the tokens of a part that are no padding; None: all.
        valid: (T,) False for padding; None: there is none.
        parts: the tokens are that many equal parts, each with a capacity of its own.
    """
    top_k = experts.shape[1]
    ids = experts.flatten()
    if parts > 1:
        # As if each part had experts of its own: their rows lie side by side, in the same order.
        part = torch.arange(len(ids), device=ids.device) // (len(ids) // parts)
        ids = ids * parts + part
    # Stable, so that the earliest tokens come first, and every run sorts alike.
    ids, slots = ids.sort(stable=True)
    ends = torch.searchsorted(ids, torch.arange(count * parts, device=ids.device), right=True)
    if valid is None:
        places = torch.arange(1, len(ids) + 1, device=ids.device)
        chosen = _differences(ends)
    else:
        valid = valid.repeat_interleave(top_k).index_select(0, slots)
        places = valid.cumsum(0)
        chosen = _differences(_padded(places).index_select(0, ends))
    if capacity_factor is None:
        return _assigned(slots, ends, chosen, chosen, parts)
    tokens: int | Tensor = len(experts) // parts
    if valid is not None:
        tokens = chosen.view(count, parts).sum(0) / top_k
    limit = capacity(tokens, top_k, count, capacity_factor)
    before = chosen.cumsum(0) - chosen
    most = limit.repeat(count) if isinstance(limit, Tensor) else limit
    of_row = most.index_select(0, ids) if isinstance(most, Tensor) else most
    kept = places - before.index_select(0, ids) <= of_row
    if valid is not None:
        kept &= valid
    taken = chosen.clamp(max=most)
    return _assigned(slots[kept], taken.cumsum(0), chosen, taken, parts)


def _assigned(
    slots: Tensor, ends: Tensor, chosen: Tensor, taken: Tensor, parts: int
) -> Assignments:
    """Put the parts of each expert together."""
    if parts == 1:
        return Assignments(slots, ends, chosen, taken)
    by_part = Parts(chosen.unflatten(0, (-1, parts)), taken.unflatten(0, (-1, parts)), ends)
    whole = ends[parts - 1 :: parts]
    return Assignments(slots, whole, by_part.chosen.sum(1), by_part.taken.sum(1), by_part)


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
