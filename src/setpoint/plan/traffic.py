"""Communication of a rank in a step, by collective, in closed form."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import gcd, prod
from typing import NamedTuple

from setpoint.memory.config import CheckpointedParts
from setpoint.parallel.config import AXES
from setpoint.parallel.pipelining import SCHEDULES, ranks_of_stages
from setpoint.plan.topology import (
    Place,
    Recompute,
    Shards,
    Topology,
    coordinates,
    local_shape,
    shards_of,
    stages_of,
    tokens_of,
)
from setpoint.plan.workload import Kind, Workload

CHOICE = 4
"""Bytes of a router weight, which is sent to the expert with its row."""
WIDE = 4
"""Bytes of an fp32 number, the format of sums of losses, ring attention and partial gradients."""


class Traffic(NamedTuple):
    """Collectives of one kind along the same axes in one step of one rank.

    Arguments:
        axes: axes of the mesh, joined by "+"; `expert` and `expert_shard` for divided experts.
        ranks: size of the group.
        bytes: bytes of full messages: after gathering, before scattering, or when summed.
    """

    kind: str
    axes: str
    ranks: int
    calls: int
    bytes: int

    @property
    def sent(self) -> int:
        """Bytes that this rank sends in a ring algorithm."""
        n = self.ranks
        share = {"all_reduce": 2 * (n - 1) / n, "send": 1.0, "recv": 0.0, "broadcast": 1.0}
        return round(self.bytes * share.get(self.kind, (n - 1) / n))


def traffic(workload: Workload, topology: Topology, rank: int = 0) -> list[Traffic]:
    """Collectives of one rank in a step, largest first.

    The loss, counts and norms of a step, a few hundred bytes in total, form one row over all ranks.
    """
    totals: dict[tuple[str, str, int], list[int]] = defaultdict(lambda: [0, 0])
    shards = shards_of(workload, topology, rank)
    for kind, axes, ranks, calls, size in (
        *_of_weights(workload, topology, shards),
        *_of_layers(workload, topology, rank),
        *_of_stages(workload, topology, rank),
    ):
        if ranks > 1 and calls and size:
            row = totals[kind, axes, ranks]
            row[0] += calls
            row[1] += size
    if topology.world_size > 1:
        axes = _joined(topology, AXES)
        row = totals["all_reduce", axes, topology.world_size]
        row[0] += 1
        row[1] += 64
    rows = [Traffic(*key, *sizes) for key, sizes in totals.items()]
    return sorted(rows, key=lambda row: -row.sent)


Row = tuple[str, str, int, int, int]


def _joined(topology: Topology, axes: tuple[str, ...]) -> str:
    degrees = topology.degrees
    return "+".join(axis for axis in AXES if axis in axes and degrees[axis] > 1) or "none"


class Turns(NamedTuple):
    """Numbers of weight gathers and gradient reductions of an FSDP2 unit per step."""

    forwards: int
    backwards: int
    sums: int


def weight_turns(topology: Topology, place: Place, is_first_layer: bool = False) -> Turns:
    """Communication of a unit in a step; see `setpoint.parallel.sharding.FirstUnits`."""
    is_cut, count = topology.pipeline > 1, topology.accumulation
    sums = 1 if topology.accumulates_whole else count
    reshard = _reshard(topology, place)
    if is_cut:
        return Turns(count if reshard else 1, count if reshard else 0, sums)
    is_kept = topology.reshard is False or is_first_layer or place in ("first", "around")
    backwards = count - (place == "first") if reshard else 0
    return Turns(1 if is_kept else count, backwards, sums)


def _reshard(topology: Topology, place: Place) -> bool | int:
    if topology.reshard is None:
        return place in ("first", "layer") and topology.pipeline == 1
    return topology.reshard


def _of_weights(workload: Workload, topology: Topology, shards: Shards) -> Iterator[Row]:
    """Weight gathers and gradient sums."""
    formats = workload.formats
    ranks, copies = topology.shards, topology.copies
    if topology.uses_fsdp:
        axes, across = (
            _joined(topology, topology.sharding_axes),
            _joined(topology, topology.copying_axes),
        )
        is_named = any(unit.place == "first" for unit in shards.units)
        for number, unit in enumerate(shards.units):
            reshard = _reshard(topology, unit.place)
            forwards, backwards, times = weight_turns(topology, unit.place, not number and is_named)
            gathered = unit.gathered
            yield "all_gather", axes, ranks, forwards, forwards * gathered
            if reshard and not isinstance(reshard, bool):  # kept on that many ranks
                yield "all_gather", axes, int(reshard), backwards, backwards * gathered
            else:
                yield "all_gather", axes, ranks, backwards, backwards * gathered
            summed = unit.trained * formats.reduce
            yield "reduce_scatter", axes, ranks, times, times * summed
            if copies > 1:
                yield "all_reduce", across, copies, 1, summed // ranks
        size, every = shards.replicated * formats.reduce, ranks * copies
        axes = _joined(topology, (*topology.sharding_axes, *topology.copying_axes))
        yield "all_reduce", axes, every, -(-size // topology.bucket), size
    elif topology.world_size > 1 and topology.pipeline == 1 and topology.tensor == 1:
        sizes = [size * formats.reduce for size in shards.trained_tensors]
        calls, total = _buckets(sizes, topology.bucket), sum(sizes)
        yield "all_reduce", _joined(topology, AXES), topology.world_size, calls, total
    if topology.tensor > 1 and shards.terms:
        size = shards.terms * WIDE
        calls = -(-shards.terms // 2**23)
        yield "all_reduce", "tensor", topology.tensor, calls, size


def _buckets(sizes: list[int], room: int) -> int:
    """Number of messages in which gradients are summed, in reverse tensor order."""
    count, left = 1, room
    is_empty = True
    for size in reversed(sizes):
        if size > left and not is_empty:
            count, left = count + 1, room
        left -= size
        is_empty = False
    return count


def _of_layers(workload: Workload, topology: Topology, rank: int) -> Iterator[Row]:
    """Communication of layers along `tensor`, `ring`, `ulysses` and experts."""
    pipeline_rank = coordinates(topology.degrees, rank)["pipeline"]
    tokens = tokens_of(workload, topology)
    for stage in stages_of(workload, topology)[pipeline_rank]:
        layer = 0
        for part in stage:
            kind = workload.kinds[workload.order[part]]
            again = 1
            if kind.name == "layer":
                again += bool(topology.recompute) and layer % topology.every == 0
                layer += 1
            yield from tensor_rows(workload, topology, kind, tokens, again)
            if kind.name == "layer":
                yield from context_rows(workload, topology, kind, tokens, again)
                yield from expert_rows(workload, topology, kind, tokens, again)
                yield from _of_experts(workload, topology, kind)


def tensor_rows(
    workload: Workload, topology: Topology, kind: Kind, tokens: int, again: int
) -> Iterator[Row]:
    """Communication of one part along `tensor` in a step.

    Arguments:
        tokens: tokens per micro-batch.
        again: 2 if the part is recomputed, else 1.
    """
    ranks, count = topology.tensor, topology.accumulation
    if ranks == 1:
        return
    formats, dim = workload.formats, workload.dim
    inner, stream = tokens * dim * formats.compute, tokens * dim * formats.params
    sequence = topology.sequence_parallel
    if kind.name == "embedding":
        if sequence:
            yield "reduce_scatter", "tensor", ranks, count, count * stream
            yield "all_gather", "tensor", ranks, count, count * stream
        else:
            yield "all_reduce", "tensor", ranks, count, count * stream
    elif kind.name == "layer":
        times = count * _divided_parts(kind)
        entered, left = _again(topology.recompute, kind) if again > 1 else (0, 0)
        if sequence:
            gathers, scatters = 2 * times + count * entered, 2 * times + count * left
            yield "all_gather", "tensor", ranks, gathers, gathers * inner
            yield "reduce_scatter", "tensor", ranks, scatters, scatters * inner
        else:
            sums = 2 * times + count * left
            yield "all_reduce", "tensor", ranks, sums, sums * inner
    else:
        if sequence:
            yield "all_gather", "tensor", ranks, count, count * inner
            yield "reduce_scatter", "tensor", ranks, count, count * inner
        else:
            yield "all_reduce", "tensor", ranks, count, count * inner
        statistics = 4 * tokens * WIDE
        if workload.takes_columns and topology.loss_parallel:
            yield "all_reduce", "tensor", ranks, 3 * count, count * statistics
        else:
            logits = tokens * workload.rows * formats.compute
            yield "all_gather", "tensor", ranks, count, count * logits


def _divided_parts(kind: Kind) -> int:
    """Divided parts of a layer: attention, and the feed-forward network if it has no experts."""
    return 2 - any(piece.role == "experts" for piece in kind.pieces)


def _again(policy: Recompute, kind: Kind) -> tuple[int, int]:
    """Number of times that recomputation enters and leaves a divided part of a layer.

    It skips the end of the last part, unless that is the input of a norm or dropout.
    """
    if policy.kind is not CheckpointedParts:
        is_last = kind.pieces[-1].role == "feed_forward"
        return _divided_parts(kind), _divided_parts(kind) - is_last
    dense = _divided_parts(kind) == 2
    return policy.recomputes("attention") + (policy.recomputes("feed_forward") and dense), 0


def context_rows(
    workload: Workload, topology: Topology, kind: Kind, tokens: int, again: int
) -> Iterator[Row]:
    """Communication of one layer along `ring` and `ulysses` in a step; see `tensor_rows`."""
    if topology.context == 1 or not kind.pair:
        return
    attention = next(piece for piece in kind.pieces if piece.role == "attention")
    sizes, count = dict(attention.sizes), topology.accumulation
    compute = workload.formats.compute
    heads = max(1, sizes["H"] // topology.tensor)
    if "K" in sizes:
        keys, query = max(1, sizes["K"] // topology.tensor), sizes["Q"]
        value = query
    else:
        keys, query, value = heads, sizes["N"] + sizes["R"], sizes["W"]
    # Messages are sent again even if the results of attention are saved.
    turns = 1 + (again > 1 and topology.recompute.recomputes("attention"))
    ulysses, ring = topology.ulysses, topology.ring
    if ulysses > 1:
        keys *= ulysses // gcd(ulysses, keys)
        sent = tokens * (heads * query + keys * (query + value)) * compute
        mixed = tokens * heads * value * compute
        calls = count * (turns + 1)
        yield "all_to_all", "ulysses", ulysses, 2 * calls, calls * (sent + mixed)
        heads, keys, tokens = heads // ulysses, keys // ulysses, tokens * ulysses
    if ring > 1:
        numbers = tokens * keys * (query + value)
        passed = count * (ring - 1) * (turns + 1)
        yield "send", "ring", ring, passed, passed * numbers * compute
        gradients = count * ring
        yield "send", "ring", ring, gradients, gradients * numbers * WIDE


def expert_rows(
    workload: Workload, topology: Topology, kind: Kind, tokens: int, again: int
) -> Iterator[Row]:
    """Communication of expert parallelism of one layer in a step; see `tensor_rows`.

    All experts are assumed to get equally many tokens. Each rank along `tensor` processes a share
    of the tokens, or all tokens if ranks divide the width of experts.
    """
    experts = next((piece for piece in kind.pieces if piece.role == "experts"), None)
    if experts is None:
        return
    sizes, count = dict(experts.sizes), topology.accumulation
    formats, ranks = workload.formats, topology.tensor
    hidden = tokens * sizes["D"]
    if ranks > 1 and topology.sequence_parallel:
        # Each rank gets the tokens of all, and all get the sum of its gradients.
        size = hidden * (again * formats.compute + formats.params)
        yield "all_gather", "tensor", ranks, count * (1 + again), count * size
    if ranks > 1 and topology.divides_experts:
        # The sum of their results, and of the gradients of tokens and of weights of choices.
        size = hidden * (again * formats.compute + formats.params) + tokens * sizes["U"] * CHOICE
        yield "all_reduce", "tensor", ranks, count * (2 + again), count * size
    if topology.expert == 1:
        return
    rows = tokens // topology.token_shares * sizes["U"]
    # There and back, and the gradients the other way; weights of choices go there with the rows,
    # after counts of them.
    policy = topology.recompute
    if policy and (policy.saves("exchange") or not policy.recomputes("feed_forward")):
        again = 1
    times, weights = count * (2 + 2 * again), count * (1 + again)
    size = rows * (times * sizes["D"] * formats.compute + weights * CHOICE)
    size += count * again * sizes["E"] * 8
    yield "all_to_all", "expert", topology.expert, times + weights + count * again, size


def expert_weights(topology: Topology, kind: Kind) -> tuple[int, int]:
    """Expert weights of a layer that a rank gathers along expert axes.

    Returns:
        bytes, and trained elements.
    """
    if not topology.divides_experts:
        return 0, 0
    gathered = trained = 0
    for weight in kind.weights:
        if weight.division == "experts":
            numbers = prod(local_shape(weight, topology)) * weight.times
            gathered += round(numbers * weight.gathered / max(1, weight.numbers))
            trained += numbers * weight.is_trained
    return gathered, trained


def expert_turns(topology: Topology) -> Turns:
    """Communication of a layer's experts in a step; pipelines free them after each pass."""
    count = topology.accumulation
    sums = 1 if topology.accumulates_whole else count
    return Turns(1, 0, sums) if topology.reshard is False else Turns(count, count, sums)


def _of_experts(workload: Workload, topology: Topology, kind: Kind) -> Iterator[Row]:
    """Weight traffic of a layer's experts, if they are divided along their own axes."""
    gathered, trained = expert_weights(topology, kind)
    if not gathered:
        return
    ranks, turns = topology.expert_shards, expert_turns(topology)
    summed = trained * workload.formats.reduce
    times = turns.forwards + turns.backwards
    yield "all_gather", "expert_shard", ranks, times, times * gathered
    yield "reduce_scatter", "expert_shard", ranks, turns.sums, turns.sums * summed
    yield "all_reduce", "replicate", topology.expert_replicas, 1, summed // ranks


def _of_stages(workload: Workload, topology: Topology, rank: int) -> Iterator[Row]:
    """The residual stream and its gradients between stages."""
    ranks = topology.pipeline
    if ranks == 1:
        return
    pipeline_rank = coordinates(topology.degrees, rank)["pipeline"]
    stages = topology.stages
    places = ranks_of_stages(ranks, stages, SCHEDULES[topology.schedule].is_v)
    tokens = tokens_of(workload, topology)
    if topology.sequence_parallel:
        tokens //= topology.tensor
    size = tokens * workload.dim * workload.formats.transfer
    count = topology.accumulation
    for stage, place in enumerate(places):
        if place != pipeline_rank:
            continue
        for other in (stage - 1, stage + 1):
            if 0 <= other < stages and places[other] != pipeline_rank:
                yield "send", "pipeline", ranks, count, count * size
    if workload.tied and places[0] != places[-1] and pipeline_rank in (places[0], places[-1]):
        shards = shards_of(workload, topology, rank)
        yield "all_reduce", "pipeline", 2, 1, shards.tied * workload.formats.gradient
