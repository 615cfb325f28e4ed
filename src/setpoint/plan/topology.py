"""The topology of a job in numbers: mesh, pipeline stages, and a rank's shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from setpoint.config import SetpointError
from setpoint.memory.config import CheckpointedParts, CheckpointingConfig, Operators
from setpoint.model.parameters import part_names
from setpoint.parallel.config import AXES, DerivedDegrees
from setpoint.parallel.pipelining import SCHEDULES, balanced, ranks_of_stages
from setpoint.plan.workload import Weight, Workload
from setpoint.shapes.protocols import side_to_shard
from setpoint.train.build.job_parameters import factored

if TYPE_CHECKING:
    from setpoint.train.config import Job


SHOWN = 8
"""Maximum ranks per line of the drawing."""


def coordinates(degrees: Mapping[str, int], rank: int) -> dict[str, int]:
    """Coordinates of a rank on each axis, outermost first."""
    coordinates_by_axis: dict[str, int] = {}
    left = prod(degrees.values())
    for axis, degree in degrees.items():
        left //= degree
        coordinates_by_axis[axis] = rank // left % degree
    return coordinates_by_axis


def stride(degrees: Mapping[str, int], axis: str) -> int:
    """Distance in ranks between neighbors on an axis."""
    names = list(degrees)
    return prod(degrees[name] for name in names[names.index(axis) + 1 :])


def span(degrees: Mapping[str, int], axes: Sequence[str]) -> int:
    """Number of consecutive ranks that contain any group along some axes."""
    return 1 + sum((degrees[axis] - 1) * stride(degrees, axis) for axis in axes)


def index_along(degrees: Mapping[str, int], axes: Sequence[str], rank: int) -> int:
    """Index of a rank in its group along some axes."""
    position, index = coordinates(degrees, rank), 0
    for axis, degree in degrees.items():
        if axis in axes:
            index = index * degree + position[axis]
    return index


def members(degrees: Mapping[str, int], axes: Sequence[str], rank: int) -> list[int]:
    """Ranks in a rank's group along some axes, in order."""
    position = coordinates(degrees, rank)
    first = rank - sum(position[axis] * stride(degrees, axis) for axis in axes)
    ranks = [first]
    for axis, degree in degrees.items():
        if axis in axes:
            step = stride(degrees, axis)
            ranks = [first + n * step for first in ranks for n in range(degree)]
    return ranks


def draw(degrees: Mapping[str, int], rank: int) -> list[tuple[str, str, str, str]]:
    """Draw the mesh around a rank, outermost axis first, without axes of one rank.

    Returns:
        rows of axis, degree, coordinate of the rank, and the ranks of its group; in large groups,
        those in the middle are left out.
    """
    position = coordinates(degrees, rank)
    rows: list[tuple[str, str, str, str]] = []
    for axis, degree in degrees.items():
        if degree == 1:
            continue
        step = stride(degrees, axis)
        first = rank - position[axis] * step
        shown = [_marked(first + n * step, rank) for n in _some(degree, position[axis])]
        rows.append((axis, f"{degree:,}", f"{position[axis]:,}", " ".join(shown)))
    return rows


def _marked(number: int, rank: int) -> str:
    return f"[{number}]" if number == rank else str(number) if number >= 0 else "..."


def _some(count: int, position: int) -> list[int]:
    """Indices to draw: the first, the last, and those around a position; large negative: a gap."""
    if count <= SHOWN:
        return list(range(count))
    near = sorted({0, 1, max(0, position - 1), position, min(count - 1, position + 1), count - 1})
    gap = -(10**12)
    shown: list[int] = []
    for number in near:
        if shown and number != shown[-1] + 1:
            shown.append(gap)
        shown.append(number)
    return shown


class Recompute(NamedTuple):
    """Activation checkpointing policy; falsy for the default, no checkpointing.

    Arguments:
        kind: class of its section.
        names: parts (`CheckpointedParts`) or saved operators (`Operators`), sorted.
        matmul_every: as in `Operators`.
    """

    kind: type[CheckpointingConfig] | None = None
    names: tuple[str, ...] = ()
    matmul_every: int = 1

    @classmethod
    def of(cls, section: CheckpointingConfig | None) -> Recompute:
        """Policy of a section."""
        match section:
            case None:
                return cls()
            case CheckpointedParts():
                return cls(CheckpointedParts, tuple(sorted(set(section.parts))))
            case Operators():
                return cls(Operators, tuple(sorted(set(section.save))), section.matmul_every)
            case _:
                return cls(type(section))

    def __bool__(self) -> bool:
        return self.kind is not None

    def __str__(self) -> str:
        """Type of the policy, with its names."""
        if self.kind is None:
            return "none"
        every = f"/{self.matmul_every}" if self.matmul_every > 1 else ""
        return f"{self.kind.__setpoint__.tag}{':' * bool(self.names)}{'+'.join(self.names)}{every}"

    def recomputes(self, part: str) -> bool:
        """True if `attention` or `feed_forward` is recomputed, except for saved operators."""
        return bool(self) and (self.kind is not CheckpointedParts or part in self.names)

    def saves(self, operator: str) -> bool:
        """True if the results of an operator (matmul, attention, exchange) are saved."""
        return self.kind is Operators and operator in self.names

    def overrides(self, every: int) -> list[str]:
        """Overrides that set the policy for every n-th layer."""
        path = "memory.activation_checkpointing"
        if self.kind is None:
            return [f"{path}=null"]
        fields = [f"{path}.type={self.kind.__setpoint__.tag}"]
        if self.names:
            field = "parts" if self.kind is CheckpointedParts else "save"
            fields.append(f"{path}.{field}=[{', '.join(self.names)}]")
        return [*fields, *([f"{path}.every={every}"] if every > 1 else [])]


class _Fields(NamedTuple):
    """Fields of `Topology`.

    Arguments:
        micro_size: sequences per micro-batch of a rank.
        accumulation: micro-batches per step.
        every: one layer out of this many is recomputed.
        reshard: as `parallel.reshard`.
        layers_per_unit: layers that FSDP2 gathers together.
        accumulation_of: as `parallel.sharding.accumulation`.
        bucket: bytes of gradients that replicas sum in one message.
    """

    pipeline: int = 1
    replicate: int = 1
    shard: int = 1
    ring: int = 1
    ulysses: int = 1
    tensor: int = 1
    expert: int = 1
    expert_tensor: int = 1
    micro_size: int = 1
    accumulation: int = 1
    recompute: Recompute = Recompute()
    every: int = 1
    schedule: str = "1f1b"
    stages_per_rank: int = 1
    split: tuple[tuple[str, ...], ...] | None = None
    sequence_parallel: bool = False
    loss_parallel: bool = True
    reshard: bool | int | None = None
    shard_over_context: str = "all"
    layers_per_unit: int = 1
    accumulation_of: str = "sharded"
    bucket: int = 25 * 2**20


class Topology(_Fields, DerivedDegrees):
    """Layout of a job over ranks, and each rank's share of a step."""

    __slots__ = ()

    @classmethod
    def of(cls, job: Job) -> Topology:
        """Topology of a job."""
        parallel, batch = job.parallel, job.batch
        pipelining, ranks = parallel.pipelining, parallel.degrees["pipeline"]
        section = job.memory.activation_checkpointing
        return cls(
            **parallel.degrees,
            expert=parallel.expert,
            expert_tensor=parallel.expert_tensor,
            micro_size=batch.micro_size,
            accumulation=batch.accumulation,
            recompute=Recompute.of(section),
            every=1 if section is None else section.every,
            schedule=pipelining.schedule,
            stages_per_rank=pipelining.stages(ranks) // ranks if ranks > 1 else 1,
            split=pipelining.split if ranks > 1 else None,
            sequence_parallel=parallel.sequence_parallel,
            loss_parallel=parallel.loss_parallel is not False,
            reshard=parallel.reshard,
            shard_over_context=parallel.shard_over_context,
            layers_per_unit=parallel.sharding.layers_per_unit,
            accumulation_of=parallel.sharding.accumulation,
            bucket=int(parallel.bucket_size * 2**20),
        )

    def of_micro_batch(self) -> Topology:
        """The same topology with fields that do not affect a micro-batch on one rank reset."""
        names = (
            "pipeline", "replicate", "shard", "accumulation", "reshard", "schedule",
            "stages_per_rank", "split",
        )  # fmt: skip
        return self._replace(**{name: self._field_defaults[name] for name in names})

    @property
    def degrees(self) -> dict[str, int]:
        """Degree of each axis, in the order of AXES."""
        degrees = cast("tuple[int, ...]", self[: len(AXES)])  # the first fields, in this order
        return dict(zip(AXES, degrees, strict=True))

    @property
    def world_size(self) -> int:
        """Total number of ranks."""
        return prod(self.degrees.values())

    @property
    def shards_experts(self) -> bool:
        """True if FSDP2 shards each expert among several ranks; see `Parallel.shards_experts`."""
        return self.divides_experts and self.expert_shards * self.expert_replicas > 1

    @property
    def token_shares(self) -> int:
        """Number of ranks along `tensor` that each send a share of the same tokens to experts.

        Ranks that divide the width of experts send all tokens.
        """
        return self.tensor if self.divides_experts and self.expert_tensor == 1 else 1

    @property
    def accumulates_whole(self) -> bool:
        """True if FSDP2 reduces gradients once per step; see `Parallel.accumulates_whole`."""
        several = self.accumulation_of == "unsharded" and self.accumulation > 1
        return self.uses_fsdp and (several or self.pipeline > 1)

    @property
    def stages(self) -> int:
        """Number of pipeline stages over all ranks; 1 without a pipeline."""
        return self.pipeline * self.stages_per_rank

    def overrides(self) -> list[str]:
        """Command-line arguments that set the topology, without those that have no effect."""
        fields = [f"parallel.{axis}={degree}" for axis, degree in self.degrees.items()]
        if self.divides_experts:
            fields += [
                f"parallel.expert={self.expert}",
                f"parallel.expert_tensor={self.expert_tensor}",
            ]
        if self.tensor > 1:
            fields.append(f"parallel.sequence_parallel={str(self.sequence_parallel).lower()}")
        if self.pipeline > 1:
            fields.append(f"parallel.pipelining.schedule={self.schedule}")
            if SCHEDULES[self.schedule].is_looped:
                fields.append(f"parallel.pipelining.stages_per_rank={self.stages_per_rank}")
        if self.shards > 1 and self.reshard is not None:
            fields.append(f"parallel.reshard={str(self.reshard).lower()}")
        fields += [
            f"batch.micro_size={self.micro_size}",
            f"batch.accumulation={self.accumulation}",
            *self.recompute.overrides(self.every),
        ]
        return [f"--{field}" for field in fields]


def tokens_of(workload: Workload, topology: Topology) -> int:
    """Tokens of a micro-batch on a rank, before `tensor` divides them."""
    return topology.micro_size * workload.length // topology.context


@lru_cache(maxsize=4096)
def stages_of(workload: Workload, topology: Topology) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Cut a model into pipeline stages as the builder does.

    Returns:
        for each pipeline rank and each of its stages, the parts by index in `Workload.order`, in
        model order.
    """
    ranks, count = topology.pipeline, topology.stages
    if ranks == 1:
        return ((tuple(range(len(workload.order))),),)
    is_v = SCHEDULES[topology.schedule].is_v
    cut = _cut(workload, count, topology.split)
    places = ranks_of_stages(ranks, count, is_v)
    return tuple(
        tuple(parts for parts, place in zip(cut, places, strict=True) if place == rank)
        for rank in range(ranks)
    )


@lru_cache(maxsize=256)
def _cut(
    workload: Workload, count: int, split: tuple[tuple[str, ...], ...] | None
) -> tuple[tuple[int, ...], ...]:
    if workload.kinds[0].name == "model":
        raise SetpointError(
            "parallel.pipeline: the parts of this model are known only once it is built\nValid: "
            "1, or a model of type = transformer"
        )
    names = part_names(workload.layers)
    numbers = {name: number for number, name in enumerate(names)}
    if split is not None:
        return tuple(tuple(numbers[name] for name in stage) for stage in split)
    if count > len(names):
        raise SetpointError(
            f"parallel.pipeline: {count} stages exceed the {len(names)} parts of the "
            f"model\nValid: {len(names)} stages or fewer"
        )
    sizes = [
        workload.kinds[kind].size._replace(name=name)
        for name, kind in zip(names, workload.order, strict=True)
    ]
    return tuple(tuple(numbers[name] for name in stage) for stage in balanced(sizes, count))


Place = Literal["first", "layer", "last", "around"]
"""Place of a unit in the model: before, among or after the layers, or both before and after."""


class Unit(NamedTuple):
    """Weights that FSDP2 gathers together.

    Arguments:
        gathered: total bytes, padded to equal shards.
        trained: trained elements, padded.
        largest: elements of the largest matrix.
    """

    place: Place
    gathered: int
    trained: int
    largest: int


class Shards(NamedTuple):
    """Shards of a rank, over the weights of all its stages.

    Arguments:
        stored: bytes, including padding.
        numbers: trained elements without padding; `padded`: with it.
        mastered: trained elements that have separate master weights if the job uses them; FSDP2
            shards are their own masters.
        state: bytes of optimizer state.
        units: units of the layers in model order, then units around the layers.
        trained_tensors: elements of each local trained tensor, in model order.
        terms: elements of whole weights whose gradient is summed over `tensor`.
        tied: elements of the embedding if another stage uses it as output matrix.
        replicated: trained elements that FSDP2 leaves whole, whose gradients are summed separately.
    """

    stored: int
    numbers: int
    padded: int
    mastered: int
    state: int
    units: tuple[Unit, ...]
    trained_tensors: tuple[int, ...]
    terms: int
    tied: int
    replicated: int


@lru_cache(maxsize=4096)
def shards_of(workload: Workload, topology: Topology, rank: int = 0) -> Shards:
    """Compute the shards of a rank."""
    degrees = topology.degrees
    position = coordinates(degrees, rank)
    shard = index_along(degrees, topology.sharding_axes, rank)
    # Nothing of a step decides what is held, and of replicas only whether there are any.
    topology = topology._replace(
        micro_size=1, accumulation=1, recompute=Recompute(), every=1, reshard=None,
        replicate=min(topology.replicate, 2),
    )  # fmt: skip
    return _shards(workload, topology, position["pipeline"], position["tensor"], shard)


class _LocalWeight(NamedTuple):
    """A weight on a rank: stored bytes; local, padded and full numbers of elements; state bytes.

    Arguments:
        in_unit: whether FSDP2 gathers it together with others.
        is_managed: whether FSDP2 shards it, so that its shard is its master weight.
    """

    stored: int
    numbers: int
    padded: int
    whole: int
    state: int
    in_unit: bool
    is_managed: bool


@lru_cache(maxsize=65536)
def _held(weight: Weight, topology: Topology, tensor: int, shard: int) -> _LocalWeight:
    shape = local_shape(weight, topology, tensor)
    total = prod(shape)
    is_expert = weight.division == "experts" and topology.divides_experts
    in_unit = not is_expert and not (weight.is_replicated and topology.uses_fsdp)
    if is_expert:
        shards = topology.expert_shards
        dim = side_to_shard(shape, weight.inner, shards)
        rows = -(-shape[dim] // shards)
        padded = total // shape[dim] * rows
        elements = padded
        local = tuple(rows if n == dim else size for n, size in enumerate(shape))
    elif in_unit and topology.uses_fsdp:
        rows = -(-shape[0] // topology.shards)
        row_size = prod(shape[1:])
        padded = rows * row_size
        rows_of_rank = max(0, min(rows, shape[0] - shard * rows))
        elements, local = rows_of_rank * row_size, (rows_of_rank, *shape[1:])
        total = padded * topology.shards
    else:
        padded, elements, local = total, total, shape
    per_number, per_tensor = weight.state
    kept = factored(local) if weight.is_factored else elements
    is_managed = topology.shards_experts if is_expert else topology.uses_fsdp and in_unit
    size = (weight.sharded if is_managed else weight.stored) / max(1, weight.numbers)
    state = kept * per_number + per_tensor
    return _LocalWeight(round(padded * size), elements, padded, total, state, in_unit, is_managed)


def local_shape(weight: Weight, topology: Topology, tensor: int = 0) -> tuple[int, ...]:
    """Local shape of a weight before FSDP2 shards it.

    Arguments:
        tensor: coordinate of the rank on the axis `tensor`.
    """
    shape, ranks = weight.shape, topology.tensor
    if weight.division == "experts" and topology.divides_experts:
        sizes = [shape[0] // topology.expert, *shape[1:]]
        if topology.expert_tensor > 1 and weight.inner:
            sizes[weight.inner] //= topology.expert_tensor
        return tuple(sizes)
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


@lru_cache(maxsize=4096)
def _shards(
    workload: Workload, topology: Topology, stage_rank: int, tensor: int, shard: int
) -> Shards:
    stored = numbers = padded = mastered = state = terms = replicated = 0
    units: list[Unit] = []
    tensors: list[int] = []
    last, first = len(workload.order) - 1, 0
    stages = stages_of(workload, topology)[stage_rank]
    parts = [part for stage in stages for part in stage]
    tied = 0
    sums: dict[int, _Sums] = {}
    """By kind, which most layers share."""
    for stage in stages:
        around: dict[Place, list[tuple[Weight, _LocalWeight]]] = {}
        layers: list[tuple[int, list[tuple[Weight, _LocalWeight]]]] = []
        units_by_kind: dict[tuple[int, ...], Unit] = {}
        for part in stage:
            number = workload.order[part]
            if number not in sums:
                kind = workload.kinds[number]
                sums[number] = _sums(
                    [(weight, _held(weight, topology, tensor, shard)) for weight in kind.weights],
                    topology,
                )
            sums_of_part = sums[number]
            if part == last and workload.tied and first not in parts:
                matrix = workload.kinds[workload.order[first]].weights[0]
                more = _held(matrix, topology, tensor, shard)
                sums_of_part, tied = (
                    _sums([*sums_of_part.held, (matrix, more)], topology),
                    more.numbers,
                )
            if part == first and workload.tied and last not in parts:
                tied = sums_of_part.held[0][1].numbers
            if workload.kinds[number].name == "layer":
                layers.append((number, sums_of_part.held))
            else:
                place = place_of(workload.kinds[number].name, workload.tied)
                around.setdefault(place, []).extend(sums_of_part.held)
            stored += sums_of_part.stored
            state += sums_of_part.state
            numbers += sums_of_part.numbers
            padded += sums_of_part.padded
            mastered += sums_of_part.mastered
            terms += sums_of_part.terms
            replicated += sums_of_part.replicated
            tensors += sums_of_part.tensors
        step = topology.layers_per_unit
        for begin in range(0, len(layers), step):
            together = layers[begin : begin + step]
            kinds = tuple(kind for kind, _ in together)
            if kinds not in units_by_kind:
                units_by_kind[kinds] = _unit(
                    [weight for _, layer in together for weight in layer], "layer"
                )
            units.append(units_by_kind[kinds])
        if not (around or layers):
            around["around"] = []
        units += [_unit(weights, place) for place, weights in around.items()]
    return Shards(
        stored,
        numbers,
        padded,
        mastered,
        state,
        tuple(units),
        tuple(tensors),
        terms,
        tied,
        replicated,
    )


def place_of(kind: str, tied: bool) -> Place:
    """Place of a part; see `setpoint.model.parameters.units_around_layers`."""
    places: dict[str, Place] = {"layer": "layer", "embedding": "first", "output": "last"}
    return places.get(kind, "around") if kind == "layer" or not tied else "around"


class _Sums(NamedTuple):
    """Weights of one part, with the sums of `Shards`."""

    held: list[tuple[Weight, _LocalWeight]]
    stored: int
    state: int
    numbers: int
    padded: int
    mastered: int
    terms: int
    replicated: int
    tensors: list[int]


def _sums(weights: list[tuple[Weight, _LocalWeight]], topology: Topology) -> _Sums:
    trained = [(weight, local) for weight, local in weights if weight.is_trained]
    return _Sums(
        weights,
        stored=sum(local.stored * weight.times for weight, local in weights),
        state=sum(local.state * weight.times for weight, local in trained),
        numbers=sum(local.numbers * weight.times for weight, local in trained),
        padded=sum(local.padded * weight.times for weight, local in trained),
        mastered=sum(
            local.padded * weight.times for weight, local in trained if not local.is_managed
        ),
        terms=sum(
            local.numbers * weight.times
            for weight, local in trained
            if _has_terms(weight, topology)
        ),
        replicated=sum(
            local.numbers * weight.times
            for weight, local in trained
            if weight.is_replicated and topology.uses_fsdp
        ),
        tensors=[local.numbers for weight, local in trained for _ in range(weight.times)],
    )


def _unit(weights: list[tuple[Weight, _LocalWeight]], place: Place) -> Unit:
    in_unit = [(weight, local) for weight, local in weights if local.in_unit]
    gathered = sum(
        round(local.whole * weight.gathered / max(1, weight.numbers)) * weight.times
        for weight, local in in_unit
    )
    trained = sum(local.whole * weight.times for weight, local in in_unit if weight.is_trained)
    largest = max((local.whole for _, local in in_unit), default=0)
    return Unit(place, gathered, trained, largest)


def _has_terms(weight: Weight, topology: Topology) -> bool:
    """True if ranks along `tensor` compute partial gradients of a replicated weight."""
    if topology.tensor == 1:
        return False
    if weight.division == "experts":
        return topology.expert_tensor > 1 and not weight.inner
    if local_shape(weight, topology) != weight.shape:
        return False
    return weight.division == "heads" or topology.sequence_parallel
