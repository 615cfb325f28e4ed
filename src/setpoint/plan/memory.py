"""The memory of one rank, part by part, at the moment of a step when there is most."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from setpoint.plan.activations import Held, held_by, missing
from setpoint.plan.mesh import coordinates
from setpoint.plan.shards import Shards, Unit, shards_of
from setpoint.plan.topology import Topology, stages_of, tokens_of
from setpoint.plan.workload import Workload


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
    fixed = update_memory(workload, topology, rank)
    if fixed.unknown:
        return fixed
    at = coordinates(topology.degrees, rank)["pipeline"]
    held = [_held(workload, topology, stage) for stage in stages_of(workload, topology)[at]]
    shards = shards_of(workload, topology, rank)
    moments = _moments(workload, topology, fixed, shards, held, at)
    return max(fixed, *moments, key=lambda each: each.total)


def update_memory(workload: Workload, topology: Topology, rank: int = 0) -> RankMemory:
    """Count what one rank holds when the optimizer steps: exact, as no activations are left."""
    formats = workload.formats
    shards = shards_of(workload, topology, rank)
    return RankMemory(
        weights=shards.stored,
        masters=_masters(workload, topology, shards),
        optimizer=shards.state,
        buffers=0,
        gradients=shards.padded * max(formats.reduce, formats.gradient),
        activations=0,
        recomputed=0,
        logits=0,
        gathered=0,
        on_host=_on_host(workload, topology, shards),
        moment="update",
        unknown=missing(workload, topology),
    )


def kept_for_backward(workload: Workload, topology: Topology) -> int:
    """Count what one micro-batch keeps on rank 0 for its backward pass, logits included."""
    stages = stages_of(workload, topology)[0]
    held = (each for stage in stages for _, each in _held(workload, topology, stage))
    return sum(each.kept for each in held)


def _masters(workload: Workload, topology: Topology, shards: Shards) -> int:
    """Masters beside the weights; shards of FSDP2 are masters themselves."""
    return 0 if topology.uses_fsdp else shards.padded * workload.formats.master


def _on_host(workload: Workload, topology: Topology, shards: Shards) -> int:
    if workload.weights_on_host:
        return shards.stored + _masters(workload, topology, shards) + shards.state
    limit = workload.state_on_device
    return 0 if limit is None else max(0, shards.state - limit)


Parts = list[tuple[str, Held]]
NOTHING = Held(0, 0, 0)


def _held(workload: Workload, topology: Topology, stage: tuple[int, ...]) -> Parts:
    """What each part of a stage keeps."""
    found: Parts = []
    layer = 0
    for part in stage:
        kind = workload.kinds[workload.order[part]]
        found.append((kind.name, held_by(kind, workload, topology, layer)))
        layer += kind.name == "layer"
    return found


def _moments(
    workload: Workload,
    topology: Topology,
    fixed: RankMemory,
    shards: Shards,
    held: list[Parts],
    at: int,
) -> list[RankMemory]:
    """The moments of a step that may be its peak."""
    layers = [each for parts in held for name, each in parts if name == "layer"]
    output = next((each for parts in held for name, each in parts if name == "output"), NOTHING)
    first = next((each for parts in held for name, each in parts if name == "embedding"), NOTHING)
    kept = [sum(each.kept for name, each in parts if name != "output") for parts in held]
    flights = _in_flight(topology, at)
    on_way = sum(count * size for count, size in zip(flights, kept, strict=True))
    on_way += _received(workload, topology)
    whole, fixed = fixed.gradients, fixed._replace(gradients=0)
    before = whole if topology.accumulation > 1 else 0
    last = max(layers, key=lambda each: each.work + each.again, default=NOTHING)
    work = last.work + last.again
    gathered = own_grads = messages = around_grads = end_messages = 0
    last_unit = first_unit = _NO_UNIT
    if topology.uses_fsdp:
        formats = workload.formats
        inner = [unit for unit in shards.units if unit.place == "layer"]
        around = [unit for unit in shards.units if unit.place != "layer"]
        if topology.pipeline == 1 and topology.reshard is not False:
            # Gathered when they are needed, and reduced as layers are.
            first_unit = next((unit for unit in around if unit.place == "first"), _NO_UNIT)
            last_unit = next((unit for unit in around if unit.place == "last"), _NO_UNIT)
            around = [unit for unit in around if unit.place == "around"]
        gathered = sum(unit.gathered for unit in around) + _gathered(topology, inner)
        most = max((unit.trained for unit in inner), default=0)
        own_grads = messages = most * formats.reduce
        rest = sum(unit.trained for unit in around)
        around_grads = rest * formats.reduce
        end_messages = (rest + first_unit.trained) * formats.reduce
        if topology.accumulates_whole:  # until the last micro-batch
            around_grads = sum(unit.trained for unit in shards.units) * formats.reduce
            before = own_grads = 0
        if topology.accumulates_whole and topology.pipeline == 1:
            before, around_grads = around_grads, 0
            whole = max(whole, before)
    elif topology.world_size > 1 and topology.pipeline * topology.tensor == 1:
        gathered = _bucket(workload, topology, shards)
        if not gathered:  # gradients lie in DDP's buckets, which are always there
            before = whole
    busy = fixed._replace(gathered=gathered + around_grads)
    behind = on_way - sum(kept) + first.kept
    return [
        fixed._replace(
            moment="loss",
            gradients=before,
            activations=on_way,
            logits=output.kept + output.work,
            gathered=gathered + last_unit.gathered,
        ),
        busy._replace(
            moment="backward",
            gradients=before,
            activations=on_way,
            gathered=busy.gathered
            + last_unit.gathered
            + last_unit.trained * 2 * workload.formats.reduce,
        ),
        busy._replace(moment="backward", gradients=before, activations=on_way, recomputed=work),
        busy._replace(
            moment="backward",
            gradients=before,
            activations=on_way - last.kept,
            recomputed=max(work, own_grads) if len(layers) > 1 else own_grads,
            gathered=gathered + around_grads + messages,
        ),
        busy._replace(
            moment="end",
            gradients=whole,
            activations=behind + last.kept,
            recomputed=work,
            gathered=gathered + around_grads + messages,
        ),
        busy._replace(
            moment="end",
            gradients=whole,
            activations=behind,
            recomputed=max(first.work, own_grads),
            gathered=gathered
            + around_grads
            + first_unit.trained * workload.formats.reduce
            + max(messages, end_messages, first_unit.gathered),
        ),
    ]


_NO_UNIT = Unit("around", 0, 0, 0)


def _gathered(topology: Topology, units: list[Unit]) -> int:
    """Whole weights of layers that are there at once."""
    if topology.pipeline > 1 or topology.reshard is False:
        return sum(unit.gathered for unit in units)
    sizes = sorted((unit.gathered for unit in units), reverse=True)
    return sum(sizes[:2])


def _bucket(workload: Workload, topology: Topology, shards: Shards) -> int:
    """Memory into which replicas gather gradients for their sums: none with DDP, or a bucket."""
    formats = workload.formats
    size = shards.padded * formats.reduce
    return 0 if formats.reduce == formats.params else min(size, topology.bucket)


def _received(workload: Workload, topology: Topology) -> int:
    """What a pipeline receives into: memory for each micro-batch."""
    if topology.pipeline == 1:
        return 0
    tokens = tokens_of(workload, topology)
    return tokens * workload.dim * workload.formats.transfer


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
