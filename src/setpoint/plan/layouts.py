"""The fastest parallel layouts of a job on named GPUs, for the command and for Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from setpoint.config import PROGRAM, Composition, Origin, SetpointError, compose, draft_of
from setpoint.plan.cost import CostEstimate, CostRequest, estimate_cost
from setpoint.plan.gpus import gpu_named
from setpoint.plan.topology_search import (
    Layout,
    SearchResult,
    SearchSpace,
    search,
    search_space,
    too_large,
    valid_layouts,
)
from setpoint.train.arguments import Overrides, Source, composed
from setpoint.train.config import Job
from setpoint.units.size import ByteSize, in_units


class Plan(NamedTuple):
    """Result of a search for layouts.

    Arguments:
        layouts: the best layouts, fastest first, each with its overrides, expected time and memory.
        first: expected step time and cost of the run for the first layout.
    """

    layouts: list[Layout]
    first: CostEstimate
    space: SearchSpace
    result: SearchResult

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON."""
        fixed = self.space.fixed.items()
        return {
            "world_size": self.space.world_size,
            "memory_limit": self.space.limit,
            "fixed": {name: v if isinstance(v, int | str) else str(v) for name, v in fixed},
            "meshes": self.result.meshes,
            "timed": self.result.timed,
            "unknown": self.result.unknown,
            "best": [layout.to_json() for layout in self.layouts],
            "first": self.first.to_json(),
        }


def find_layouts(
    composition: Composition[Job],
    request: CostRequest,
    memory: str | int | None,
    top: int,
    change: Callable[[list[str]], Job],
) -> Plan:
    """Search for layouts of a job that fit into the memory of a GPU.

    Arguments:
        memory: bytes of a GPU to use, such as `72GiB`; None: nine tenths.
        change: returns the job with further overrides.

    Raises:
        SetpointError: no layout fits, or the memory or traffic of the job is unknown.
    """
    limit = request.gpu.usable if memory is None else _limit(memory, request)
    job, space = search_space(composition, request.gpu, request.network, limit)
    result = search(space, top)
    if not result.best:
        raise SetpointError(too_large(space))
    layouts = valid_layouts(result, space, top, change)
    topology, needed = layouts[0].candidate.topology, layouts[0].candidate.memory
    first = estimate_cost(request, job, space.workload, topology, needed)
    return Plan(layouts, first, space, result)


def _limit(memory: str | int, request: CostRequest) -> int:
    """Bytes that a rank may use."""
    has = int(request.gpu.memory)
    try:
        limit = ByteSize(memory)
    except (SetpointError, ValueError):
        raise SetpointError(f"memory needs a size such as 72GiB, got {memory!r}") from None
    if not 0 < limit <= has:
        raise SetpointError(
            f"memory = {memory}: {request.title} has {in_units(has)}\n"
            f"Valid: more than 0, up to that, or another GPU"
        )
    return limit


def plan(
    source: Source,
    overrides: Overrides = (),
    *,
    gpu: str,
    world_size: int | None = None,
    gpu_file: str | None = None,
    memory: str | int | None = None,
    price: float | None = None,
    power: float | None = None,
    top: int = 10,
) -> Plan:
    """Find the fastest parallel layouts of a job, like `setpoint plan`, without importing torch.

    Arguments:
        source: as in `train`.
        overrides: as in `train`; the search keeps the values they set.
        gpu: name of the GPU, such as `"h100"`.
        world_size: number of ranks; None: as in the job.
        gpu_file: file with your own GPUs and networks.
        memory: bytes of a GPU to use, such as `"72GiB"`; None: nine tenths.
        price: price per GPU-hour.
        power: power per GPU in watts; None: from its data sheet.
        top: number of layouts.

    Raises:
        SetpointError: no layout fits, or the memory or traffic of the job is unknown.
    """
    base, _ = composed(source, overrides, world_size=world_size, caller="plan")
    if base.draft.parallel.device == "auto":  # the device of the GPU
        base.draft.parallel.set_field("device", "cuda", Origin(PROGRAM, "plan(gpu=...)"))
    request = CostRequest.of(gpu, gpu_named(gpu, gpu_file), price, power)
    start = draft_of(base.draft)  # the search empties its sections

    def change(more: list[str]) -> Job:
        return compose(Job, start, flags=more).resolve()

    return find_layouts(base, request, memory, top, change)
