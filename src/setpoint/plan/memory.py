"""The memory of one rank, part by part, at the moment of a step when there is most."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from setpoint.plan.activations import Held, held_by
from setpoint.plan.mesh import coordinates
from setpoint.plan.shards import Shards, Unit, shards_of
from setpoint.plan.workload import Topology, Workload, stages_of, tokens_of


class RankMemory(NamedTuple):
    """Bytes of one rank at its peak, by what they are for.

    Arguments:
        masters: second copies of the weights, which the optimizer updates.
        optimizer: its whole state, wherever it lies.
        gradients: as they add up, and those of layers in work.
        activations: kept for backward passes, of all micro-batches on their way; logits apart.
        recomputed: of the layer that is computed again, and what a backward pass needs for a
            moment.
        logits: of a micro-batch and of its loss.
        gathered: whole weights of the layers in work, and the messages of their gradients.
        on_host: of what is listed here, what lies in host memory.
        moment: `loss`, `backward`, `end` of the backward pass, or `update`.
        unknown: why there are no activations; empty where they are known.
    """

    weights: int
    masters: int
    optimizer: int
    buffers: int
    gradients: int
    activations: int
    recomputed: int
    logits: int
    gathered: int
    on_host: int
    moment: str
    unknown: str = ""

    @property
    def total(self) -> int:
        """Bytes on the device, of what is known."""
        return sum(self[:9]) - self.on_host

    def to_json(self) -> dict[str, object]:
        """The memory for machines."""
        return {**self._asdict(), "total": self.total}


@lru_cache(maxsize=65536)
def rank_memory(workload: Workload, topology: Topology, rank: int = 0) -> RankMemory:
    """Count what one rank holds at its peak."""
    formats = workload.formats
    shards = shards_of(workload, topology, rank)
    at = coordinates(topology.degrees, rank)["pipeline"]
    stages = stages_of(workload, topology)[at]
    fixed = RankMemory(
        weights=shards.stored,
        masters=shards.padded * formats.master,
        optimizer=shards.state,
        buffers=0,
        gradients=0,
        activations=0,
        recomputed=0,
        logits=0,
        gathered=0,
        on_host=_on_host(workload, shards),
        moment="update",
        unknown=workload.unknown,
    )
    whole = shards.padded * max(formats.reduce, formats.gradient)
    moments = [fixed._replace(gradients=whole)]
    held = [_held(workload, topology, stage) for stage in stages]
    known = [each for stage in held if stage for each in stage]
    if len(known) == sum(map(len, stages)):
        moments += _moments(workload, topology, fixed, shards, whole, held, at)
    return max(moments, key=lambda each: each.total)


def _on_host(workload: Workload, shards: Shards) -> int:
    formats = workload.formats
    if workload.weights_on_host:
        return shards.stored + shards.padded * formats.master + shards.state
    limit = workload.state_on_device
    return 0 if limit is None else max(0, shards.state - limit)


Parts = list[tuple[str, Held]]


def _held(workload: Workload, topology: Topology, stage: tuple[int, ...]) -> Parts:
    """What each part of a stage keeps; none where it is not known."""
    found: Parts = []
    layer = 0
    for part in stage:
        kind = workload.kinds[workload.order[part]]
        held = held_by(kind, workload, topology, layer)
        if held is None:
            return []
        layer += kind.name == "layer"
        found.append((kind.name, held))
    return found


def _moments(
    workload: Workload,
    topology: Topology,
    fixed: RankMemory,
    shards: Shards,
    whole: int,
    held: list[Parts],
    at: int,
) -> list[RankMemory]:
    """The moments of a step that may be its peak."""
    kept = [sum(each.kept for name, each in parts if name != "output") for parts in held]
    logits = sum(each.kept for parts in held for name, each in parts if name == "output")
    last = max((each.work for parts in held for name, each in parts if name == "output"), default=0)
    layers = [each for parts in held for name, each in parts if name == "layer"]
    work = max((each.work + each.again for each in layers), default=0)
    flights = _in_flight(topology, at)
    on_way = sum(count * size for count, size in zip(flights, kept, strict=True))
    on_way += _buffers(workload, topology, at)
    before = whole if topology.accumulation > 1 else 0
    around = sum(unit.gathered for unit in shards.units if not unit.is_layer)
    inner = [unit for unit in shards.units if unit.is_layer]
    gathered = messages = 0
    if topology.uses_fsdp:
        gathered = around + _gathered(topology, inner)
        most = max((unit.trained for unit in inner), default=0)
        messages = most * (workload.formats.reduce + workload.formats.params)
        messages += sum(unit.trained for unit in shards.units if not unit.is_layer) * (
            workload.formats.params
        )
    busy = fixed._replace(gathered=gathered)
    return [
        busy._replace(moment="loss", gradients=before, activations=on_way, logits=logits + last),
        busy._replace(
            moment="backward",
            gradients=before,
            activations=on_way,
            recomputed=work,
            gathered=gathered + messages,
        ),
        busy._replace(
            moment="end",
            gradients=whole,
            activations=on_way - sum(kept) + max((each.kept for each in layers), default=0),
            recomputed=work,
            gathered=gathered + messages,
        ),
    ]


def _gathered(topology: Topology, units: list[Unit]) -> int:
    """Whole weights of layers that are there at once."""
    if topology.pipeline > 1 or topology.reshard is False:
        return sum(unit.gathered for unit in units)
    sizes = sorted((unit.gathered for unit in units), reverse=True)
    return sum(sizes[:2])


def _buffers(workload: Workload, topology: Topology, at: int) -> int:
    """What a pipeline receives into: memory for each micro-batch."""
    if topology.pipeline == 1:
        return 0
    tokens = tokens_of(workload, topology)
    return tokens * workload.dim * workload.formats.params


def _in_flight(topology: Topology, at: int) -> list[int]:
    """How many micro-batches of each stage of a rank are between forward and backward, at most."""
    ranks, count, held = topology.pipeline, topology.accumulation, topology.stages_per_rank
    if ranks == 1:
        return [1]
    behind = ranks - at
    match topology.schedule:
        case "gpipe" | "looped_bfs":
            most = count * held
        case "1f1b":
            most = behind * held
        case "zbv_zero_bubble":
            most = 2 * ranks
        case "dual_pipe_v":
            most = 2 * ranks + 1
        case _:
            most = (held - 1) * ranks + 2 * (behind - 1) + 1
    most = min(most, count * held)
    return [most // held + (number < most % held) for number in range(held)]
