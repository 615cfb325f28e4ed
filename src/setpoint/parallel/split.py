"""How the parts of a model are distributed over the stages of a pipeline."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from operator import add

from setpoint.shapes.protocols import Part


def balanced(parts: Sequence[Part], stages: int) -> list[list[str]]:
    """Cut a model into stages that take about the same time and memory.

    The stage with the most FLOPs has as few as possible, since all others wait for it. Of the ways
    to cut that leave it so, it is the one with the least sum of squares of what the stages have of
    all FLOPs and of all parameters, as shares. Found by dynamic programming, in O(parts^2 stages).

    Arguments:
        parts: in the order in which tokens go through them.
        stages: at most as many as parts.

    Returns:
        the names of the parts of each stage, none of which is empty.
    """
    assert 0 < stages <= len(parts)
    flops = [0, *accumulate(part.flops for part in parts)]
    parameters = [0, *accumulate(part.parameters for part in parts)]

    def time(first: int, last: int) -> float:
        return (flops[last] - flops[first]) / max(1, flops[-1])

    def squares(first: int, last: int) -> float:
        if time(first, last) > limit:
            return math.inf
        memory = (parameters[last] - parameters[first]) / max(1, parameters[-1])
        return time(first, last) ** 2 + memory**2

    limit, _ = _cut(len(parts), stages, time, max)
    _, cuts = _cut(len(parts), stages, squares, add)
    names = [part.name for part in parts]
    return [names[first:last] for first, last in pairwise(cuts)]


def _cut(
    count: int,
    stages: int,
    cost: Callable[[int, int], float],
    join: Callable[[float, float], float],
) -> tuple[float, list[int]]:
    """Find where to cut so that the joined cost of all stages is least.

    Returns:
        that cost, and the bounds of the stages: 0, the cuts, and the number of parts.
    """
    # What the first so many parts cost in the stages so far.
    best = {last: (cost(0, last), [0, last]) for last in range(1, count + 1)}
    for held in range(2, stages + 1):
        best = {
            last: min(
                (join(best[cut][0], cost(cut, last)), [*best[cut][1], last])
                for cut in range(held - 1, last)
            )
            for last in range(held, count + 1)
        }
    return best[count]


def ranks_of_stages(ranks: int, stages: int, is_v: bool) -> list[int]:
    """On which rank of a pipeline each stage lies.

    Arguments:
        is_v: whether every second round of stages goes back over the ranks, so that the last of
            two rounds lies with the first; else each round begins at the first rank.
    """
    there = list(range(ranks))
    rounds = [there[::-1] if is_v and number % 2 else there for number in range(stages // ranks)]
    return [rank for each in rounds for rank in each]
