"""What of the weights one rank holds, tensor by tensor, as the axes divide them."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Literal, NamedTuple

from setpoint.plan.mesh import coordinates, index_along
from setpoint.plan.topology import Topology, stages_of
from setpoint.plan.weight import Weight
from setpoint.plan.workload import Workload
from setpoint.shapes.protocols import side_to_shard

Place = Literal["first", "layer", "last", "around"]
"""Of a unit in the model: before the layers, among them, behind them, or on both sides."""


class Unit(NamedTuple):
    """Weights that FSDP2 gathers together.

    Arguments:
        gathered: bytes of all of them, padded so that all ranks have as much.
        trained: numbers of those that are trained, padded.
        largest: numbers of the largest matrix.
    """

    place: Place
    gathered: int
    trained: int
    largest: int


class Shards(NamedTuple):
    """What a rank holds of the weights of all its stages.

    Arguments:
        stored: bytes, padding included.
        numbers: that are trained, without padding; `padded` with it.
        state: bytes of optimizer state.
        units: layers in the order of the model, then what lies around them.
        trained_tensors: numbers of each trained tensor here, in the order of the model.
        terms: numbers of whole weights of whose gradients each rank of `tensor` has a term.
        tied: numbers of the embedding where another stage has it as its output matrix.
        replicated: trained numbers of what FSDP2 leaves whole, whose gradients are summed beside.
    """

    stored: int
    numbers: int
    padded: int
    state: int
    units: tuple[Unit, ...]
    trained_tensors: tuple[int, ...]
    terms: int
    tied: int
    replicated: int


@lru_cache(maxsize=4096)
def shards_of(workload: Workload, topology: Topology, rank: int = 0) -> Shards:
    """Find what a rank holds of the weights."""
    degrees = topology.degrees
    at = coordinates(degrees, rank)
    shard = index_along(degrees, topology.sharding_axes, rank)
    # Nothing of a step decides what is held, and of replicas only whether there are any.
    topology = topology._replace(
        micro_size=1, accumulation=1, recompute="none", every=1, reshard=None,
        replicate=min(topology.replicate, 2),
    )  # fmt: skip
    return _shards(workload, topology, at["pipeline"], at["tensor"], shard)


class _Held(NamedTuple):
    """One weight on a rank: bytes stored, numbers here, with padding, gathered whole, and state.

    Arguments:
        in_unit: whether FSDP2 gathers it together with others.
    """

    stored: int
    numbers: int
    padded: int
    whole: int
    state: int
    in_unit: bool


@lru_cache(maxsize=65536)
def _held(weight: Weight, topology: Topology, tensor: int, shard: int) -> _Held:
    shape = local_shape(weight, topology, tensor)
    whole = prod(shape)
    is_expert = weight.division == "experts" and topology.divides_experts
    in_unit = not is_expert and not (weight.is_replicated and topology.uses_fsdp)
    if is_expert:
        shards = topology.expert_shards
        dim = side_to_shard(shape, weight.inner, shards)
        rows = -(-shape[dim] // shards)
        padded = whole // shape[dim] * rows
        own = padded
        local = tuple(rows if n == dim else size for n, size in enumerate(shape))
    elif in_unit and topology.uses_fsdp:
        rows = -(-shape[0] // topology.shards)
        rest = prod(shape[1:])
        padded = rows * rest
        here = max(0, min(rows, shape[0] - shard * rows))
        own, local = here * rest, (here, *shape[1:])
        whole = padded * topology.shards
    else:
        padded, own, local = whole, whole, shape
    per_number, per_tensor = weight.state
    kept = _factored(local) if weight.is_factored else own
    by_fsdp = topology.shards_experts if is_expert else topology.uses_fsdp and in_unit
    size = (weight.sharded if by_fsdp else weight.stored) / max(1, weight.numbers)
    return _Held(round(padded * size), own, padded, whole, kept * per_number + per_tensor, in_unit)


def local_shape(weight: Weight, topology: Topology, tensor: int = 0) -> tuple[int, ...]:
    """The shape that a rank has of a weight before FSDP2 divides it.

    Arguments:
        tensor: the rank's coordinate on the axis `tensor`.
    """
    shape, ranks = weight.shape, topology.tensor
    if weight.division == "experts" and topology.divides_experts:
        found = [shape[0] // topology.expert, *shape[1:]]
        if topology.expert_tensor > 1 and weight.inner:
            found[weight.inner] //= topology.expert_tensor
        return tuple(found)
    if ranks == 1 or weight.division in ("whole", "experts"):
        return shape
    if weight.division == "columns":
        return (shape[0], shape[1] // ranks, *shape[2:])
    if weight.division == "rows":
        return (shape[0] // ranks, *shape[1:])
    if weight.division == "heads":
        heads = weight.heads
        if len(heads) > 1 or any(count % ranks for count, _ in heads):
            return shape
        return (shape[0] // ranks, *shape[1:])
    rows = -(-shape[0] // ranks)
    return (max(0, min(rows, shape[0] - tensor * rows)), *shape[1:])


def _factored(shape: tuple[int, ...]) -> int:
    """Means of rows and of columns, or of each number of what is no matrix."""
    if len(shape) < 2:
        return prod(shape)
    return prod(shape[:-1]) + prod(shape[:-2]) * shape[-1]


@lru_cache(maxsize=4096)
def _shards(
    workload: Workload, topology: Topology, stage_rank: int, tensor: int, shard: int
) -> Shards:
    stored = numbers = padded = state = terms = replicated = 0
    units: list[Unit] = []
    tensors: list[int] = []
    last, first = len(workload.order) - 1, 0
    stages = stages_of(workload, topology)[stage_rank]
    parts = [part for stage in stages for part in stage]
    tied = 0
    sums: dict[int, _Sums] = {}
    """By kinds, of which most layers have the same."""
    for stage in stages:
        around: dict[Place, list[tuple[Weight, _Held]]] = {}
        layers: list[tuple[int, list[tuple[Weight, _Held]]]] = []
        made: dict[tuple[int, ...], Unit] = {}
        for part in stage:
            number = workload.order[part]
            if number not in sums:
                kind = workload.kinds[number]
                sums[number] = _sums(
                    [(each, _held(each, topology, tensor, shard)) for each in kind.weights],
                    topology,
                )
            own = sums[number]
            if part == last and workload.tied and first not in parts:
                matrix = workload.kinds[workload.order[first]].weights[0]
                more = _held(matrix, topology, tensor, shard)
                own, tied = _sums([*own.held, (matrix, more)], topology), more.numbers
            if part == first and workload.tied and last not in parts:
                tied = own.held[0][1].numbers
            if workload.kinds[number].name == "layer":
                layers.append((number, own.held))
            else:
                place = place_of(workload.kinds[number].name, workload.tied)
                around.setdefault(place, []).extend(own.held)
            stored += own.stored
            state += own.state
            numbers += own.numbers
            padded += own.padded
            terms += own.terms
            replicated += own.replicated
            tensors += own.tensors
        step = topology.layers_per_unit
        for begin in range(0, len(layers), step):
            together = layers[begin : begin + step]
            kinds = tuple(kind for kind, _ in together)
            if kinds not in made:
                made[kinds] = _unit([each for _, layer in together for each in layer], "layer")
            units.append(made[kinds])
        if not (around or layers):
            around["around"] = []
        units += [_unit(weights, place) for place, weights in around.items()]
    return Shards(
        stored, numbers, padded, state, tuple(units), tuple(tensors), terms, tied, replicated
    )


def place_of(kind: str, tied: bool) -> Place:
    """The place of a part; see `setpoint.model.parts.units_around_layers`."""
    places: dict[str, Place] = {"layer": "layer", "embedding": "first", "output": "last"}
    return places.get(kind, "around") if kind == "layer" or not tied else "around"


class _Sums(NamedTuple):
    """The weights of one part, and over them what `Shards` has of all."""

    held: list[tuple[Weight, _Held]]
    stored: int
    state: int
    numbers: int
    padded: int
    terms: int
    replicated: int
    tensors: list[int]


def _sums(held: list[tuple[Weight, _Held]], topology: Topology) -> _Sums:
    trained = [(weight, own) for weight, own in held if weight.is_trained]
    return _Sums(
        held,
        stored=sum(own.stored * weight.times for weight, own in held),
        state=sum(own.state * weight.times for weight, own in trained),
        numbers=sum(own.numbers * weight.times for weight, own in trained),
        padded=sum(own.padded * weight.times for weight, own in trained),
        terms=sum(
            own.numbers * weight.times for weight, own in trained if _has_terms(weight, topology)
        ),
        replicated=sum(
            own.numbers * weight.times
            for weight, own in trained
            if weight.is_replicated and topology.uses_fsdp
        ),
        tensors=[own.numbers for weight, own in trained for _ in range(weight.times)],
    )


def _unit(held: list[tuple[Weight, _Held]], place: Place) -> Unit:
    own = [(weight, each) for weight, each in held if each.in_unit]
    gathered = sum(
        round(each.whole * weight.gathered / max(1, weight.numbers)) * weight.times
        for weight, each in own
    )
    trained = sum(each.whole * weight.times for weight, each in own if weight.is_trained)
    largest = max((each.whole for _, each in own), default=0)
    return Unit(place, gathered, trained, largest)


def _has_terms(weight: Weight, topology: Topology) -> bool:
    """Whether each rank of `tensor` finds a term of the gradient of a weight that it has whole."""
    if topology.tensor == 1:
        return False
    if weight.division == "experts":
        return topology.expert_tensor > 1 and not weight.inner
    if local_shape(weight, topology) != weight.shape:
        return False
    return weight.division == "heads" or topology.sequence_parallel
