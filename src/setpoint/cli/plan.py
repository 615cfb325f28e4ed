"""`setpoint plan`: the fastest parallel layouts of a job for N GPUs, and the cost of a run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from setpoint.cli.options import (
    COMMON,
    GPU,
    GPU_FILE,
    GPU_OPTIONS,
    JSON,
    POWER,
    PRICE,
    SOURCE_HELP,
    TIMELINE,
    WORLD_SIZE,
    Arguments,
    Command,
    Option,
)
from setpoint.cli.output import bold, emit, table, wrapped
from setpoint.cli.source import open_source
from setpoint.config import FILE as FILES
from setpoint.config import ConfigError, SetpointError, chain_of
from setpoint.config.values.origin import COMMAND_LINE, ENVIRONMENT, Recorded
from setpoint.units.size import ByteSize, in_units

if TYPE_CHECKING:
    from setpoint.config import Composition
    from setpoint.plan.machines import Cost, Machine, Network
    from setpoint.plan.memory import RankMemory
    from setpoint.plan.search import Candidate, SearchResult, SearchSpace
    from setpoint.plan.step_time import StepTime
    from setpoint.plan.topology import Topology
    from setpoint.plan.workload import Workload
    from setpoint.train.config import Job

DEFAULTS = (
    *(f"parallel.{axis}=1" for axis in ("pipeline", "replicate", "shard", "ring", "ulysses")),
    "parallel.tensor=1",
    "parallel.expert_tensor=1",
    "activation_checkpointing=null",
)
"""Ends of overrides that are needed only where a preset sets something else."""
WRITTEN = (FILES, ENVIRONMENT, COMMAND_LINE)
"""Layers of values that the user has written, which the search keeps."""
UNPRICED = "unknown: no --price"


@Command(
    "plan",
    "SOURCE [OVERRIDES]",
    "Search the degrees of all axes, micro-batches, recomputation and the schedule of a pipeline\n"
    "for the shortest expected step on --world-size N GPUs, within their memory, and print the\n"
    "best as overrides, each resolved with all rules. What a file, the environment or an\n"
    "override sets is kept. Nothing is built and torch is not imported; the tensor axis\n"
    "stays within a node, and a pipeline has 16 ranks at most, unless they are set.\n"
    + SOURCE_HELP,
    [
        *COMMON,
        WORLD_SIZE,
        *GPU_OPTIONS,
        Option("--memory", "Bytes of a GPU to use, such as 72GiB; default: nine tenths.", "SIZE"),
        Option("--top", "Number of layouts to print; default: 10.", "N", type=int),
        JSON,
    ],
    [
        ("setpoint plan llama3-70b --gpu h100 --world-size 64", "the best ten"),
        ("setpoint plan exp.toml --gpu a100 --world-size 16 --memory 64GiB", "with less memory"),
        ("setpoint plan exp.toml --gpu h100 --world-size 64 --parallel.tensor 8", "one axis fixed"),
    ],
)
def plan(arguments: Arguments) -> int:
    """Search, and print the best layouts."""
    from setpoint.plan.search import least_memory, search
    from setpoint.train.config import Job

    if not arguments.has(GPU.name):
        raise SetpointError("--gpu NAME is missing: the GPU that the job runs on, such as h100")
    request = read_cost_options(arguments)
    composition = open_source(arguments.source, arguments)
    if not isinstance(composition.draft, Job):
        kind = type(composition.draft).__name__
        raise SetpointError(f"{kind} is not a training job, which `setpoint plan` takes")
    job, space = _space(composition, request, _memory_limit(arguments, request))
    count = arguments.integer("--top") or 10
    result = search(space, count)
    if not result.best:
        raise SetpointError(_too_large(space, *least_memory(space)))
    best = _resolved(result, arguments, space, count)
    topology, memory = best[0][1].topology, best[0][1].memory
    estimate = estimate_cost(request, job, space.workload, topology, memory)
    estimate.write(composition.label)

    def text() -> str:
        title = f"{composition.label} on {space.world_size:,} x {request.title}"
        rows = [(f"  {name}", value) for name, value in estimate.facts()
                if name in ("run", "GPU-hours", "price", "energy")]  # fmt: skip
        details = (
            f"  details: setpoint check {arguments.source} --plan --gpu {request.name} "
            f"--world-size {space.world_size} and its overrides"
        )
        lines = "\n".join(_lines(title, space, result, best))
        return f"{lines}\n\n{bold('the first of them')}\n{table(rows)}\n{details}"

    facts = _facts(space, result, best) | {"first": estimate.to_json()}
    emit(arguments, facts, text)
    return 0


def _memory_limit(arguments: Arguments, request: CostRequest) -> int:
    """Bytes that a rank may use."""
    has, given = int(request.machine.memory), arguments.value("--memory")
    if given is None:
        return request.machine.usable
    try:
        limit = ByteSize(given)
    except (SetpointError, ValueError):
        raise SetpointError(f"--memory is a size such as 72GiB, got {given!r}") from None
    if not 0 < limit <= has:
        raise SetpointError(
            f"--memory {given}: {request.title} has {in_units(has)}\n"
            f"Valid: more than 0, up to that, or another --gpu"
        )
    return limit


def _space(
    composition: Composition[Any], request: CostRequest, limit: int
) -> tuple[Job, SearchSpace]:
    """The job on one rank, and the layouts to search."""
    from setpoint.parallel.config import Parallel
    from setpoint.plan.search import SearchSpace
    from setpoint.plan.step_time import Kernels
    from setpoint.plan.topology import Recompute, Topology
    from setpoint.plan.workload import Workload

    draft = composition.draft
    parallel, batch, section = draft.parallel, draft.batch, draft.memory.activation_checkpointing
    size = parallel.world_size
    if size < 2:
        raise SetpointError(
            "--world-size N is missing, or 1: a layout divides a job among GPUs\n"
            "Valid: 2 or more; `setpoint check --plan --gpu` estimates the step of one GPU"
        )
    for field, is_used in (("engine", parallel.uses_deepspeed), ("torchft", parallel.torchft)):
        if is_used:
            raise SetpointError(f"parallel.{field}: its traffic is not known. Leave it out")
    fixed = _fixed(draft)
    start = Topology(
        recompute=fixed.get("recompute", Recompute()),
        every=1 if section is None else section.every,
        schedule=parallel.pipelining.schedule,
        split=fixed.get("split"),
        expert_tensor=fixed.get("expert_tensor", 1),
        loss_parallel=parallel.loss_parallel is not False,
        shard_over_context=parallel.shard_over_context,
        layers_per_unit=parallel.sharding.layers_per_unit,
        bucket=int(parallel.bucket_size * 2**20),
    )
    draft.parallel = Parallel(device=parallel.device)
    if chain_of(batch, "global_size"):
        batch.micro_size, batch.accumulation = 1, batch.global_size
    if "recompute" not in fixed:
        draft.memory.activation_checkpointing = None
    job = composition.resolve()
    workload = Workload.of(job)._replace(weights_on_host=parallel.sharding.offload)
    if workload.unknown:
        raise SetpointError(
            f"the memory of a step is not known here: {workload.unknown}\n"
            f"Valid: `setpoint check --fake-step` of one layout, which may know"
        )
    return job, SearchSpace(
        workload, size, start, fixed, request.machine, request.network, Kernels.of(job), limit
    )


def _fixed(draft: Any) -> dict[str, Any]:
    """The axes, sizes and settings that the user has written, which are not searched."""
    from setpoint.parallel.config import AXES, REST
    from setpoint.plan.topology import Recompute

    axes = (*AXES, "expert", "expert_tensor", "sequence_parallel", "reshard")
    fixed = {
        name: value
        for section, names in (
            (draft.parallel, axes),
            (draft.parallel.pipelining, ("schedule", "stages_per_rank", "split")),
            (draft.batch, ("micro_size", "accumulation")),
        )
        for name in names
        if _is_written(section, name) and (value := getattr(section, name)) not in (REST, None)
    }
    if {"micro_size", "accumulation"} & fixed.keys() and not chain_of(draft.batch, "global_size"):
        raise SetpointError(
            "batch.global_size is not given, and would be another for each layout\nValid: the "
            "sequences of a step, with micro_size and accumulation left free"
        )
    section = draft.memory.activation_checkpointing
    fields = () if section is None else section.__setpoint__.fields
    if _is_written(draft.memory, "activation_checkpointing") or any(
        _is_written(section, name) for name in fields
    ):
        fixed["recompute"] = Recompute.of(section)
    return fixed


def _is_written(section: Any, name: str) -> bool:
    """True if a file, the environment or an override has set a field."""
    return any(
        origin.layer in WRITTEN and not isinstance(origin, Recorded)
        for origin, _ in chain_of(section, name)
    )


Resolved = tuple[list[str], "Candidate"]
"""A layout as overrides, and its place in the search."""


def _resolved(
    result: SearchResult, arguments: Arguments, space: SearchSpace, count: int
) -> list[Resolved]:
    """The first layouts that all rules accept.

    Raises:
        ConfigError: if there is none: the problems of the first.
    """
    from setpoint.plan.topology import Topology

    best: list[Resolved] = []
    refused: ConfigError | None = None
    typed = list(arguments.overrides)
    for candidate in result.best:
        if len(best) == count:
            break
        overrides = [text for text in candidate.topology.overrides() if not _is_known(text, space)]
        fewest = [text for text in overrides if not text.endswith(DEFAULTS)]
        for texts in (fewest, overrides):
            arguments.overrides = [*typed, *texts]
            try:
                job = open_source(arguments.source, arguments).resolve()
            except ConfigError as error:
                refused = refused or error
                continue
            if _shape(Topology.of(job)) == _shape(candidate.topology):
                best.append((texts, candidate))
                break
    arguments.overrides = typed
    if not best:
        assert refused is not None
        raise refused
    return best


def _shape(topology: Topology) -> tuple[Any, ...]:
    """The degrees, micro-batch and recomputation, which overrides set."""
    return (*topology.degrees.values(), topology.micro_size, topology.recompute)


def _is_known(override: str, space: SearchSpace) -> bool:
    """True if an override sets a field that is fixed already."""
    path = override.removeprefix("--").partition("=")[0]
    if path.startswith("memory.activation_checkpointing"):
        return "recompute" in space.fixed
    return path.rpartition(".")[2] in space.fixed


def _facts(space: SearchSpace, result: SearchResult, best: list[Resolved]) -> dict[str, Any]:
    from setpoint.plan.topology import Recompute

    return {
        "world_size": space.world_size,
        "memory_limit": space.limit,
        "fixed": {
            name: str(value) if isinstance(value, Recompute) else value
            for name, value in space.fixed.items()
        },
        "meshes": result.meshes,
        "timed": result.timed,
        "unknown": result.unknown,
        "best": [
            {
                "overrides": overrides,
                "seconds": each.time.seconds,
                "tokens_per_second": each.time.tokens_per_second,
                "mfu": each.time.mfu,
                "memory": each.memory.total,
            }
            for overrides, each in best
        ],
    }


def _lines(
    title: str, space: SearchSpace, result: SearchResult, best: list[Resolved]
) -> Iterator[str]:
    from setpoint.plan.timeline import seconds

    yield bold(title)
    yield (
        f"  {result.meshes:,} meshes, {result.timed:,} topologies timed; at most "
        f"{in_units(space.limit)} a rank"
    )
    if result.unknown:
        yield f"  left out where the memory is not known here: {result.unknown}"
    if space.fixed:
        names = ", ".join(f"{name} = {value}" for name, value in space.fixed.items())
        yield f"  fixed: {names}"
    yield ""
    rows = [
        (f"  {number}", seconds(each.time.seconds), f"{each.time.tokens_per_second:,.0f}",
         f"{each.time.mfu:.1%}", in_units(each.memory.total))
        for number, (_, each) in enumerate(best, 1)
    ]  # fmt: skip
    yield table(rows, ("  ", "step", "tokens/s", "MFU", "memory"))
    for number, (overrides, _) in enumerate(best, 1):
        yield f"\n{number}: {' '.join(map(shlex.quote, overrides))}"


def _too_large(space: SearchSpace, topology: Any, memory: Any, ranks: int | None) -> str:
    """The message that no layout fits: by how much, and the setting that would help most."""
    parts = {
        "weights": memory.weights + memory.gathered,
        "master weights and optimizer state": memory.masters + memory.optimizer,
        "gradients": memory.gradients,
        "activations": memory.activations + memory.recomputed,
        "logits": memory.logits,
    }
    largest = max(parts, key=lambda name: parts[name])
    helps = {
        "weights": "precision.params = bf16",
        "master weights and optimizer state": "an optimizer with a smaller state",
        "gradients": "precision.params = bf16",
        "activations": "a smaller batch.sequence_length",
        "logits": "loss.type = chunked_cross_entropy or linear_cross_entropy",
    }[largest]
    more = "" if ranks is None else f"--world-size {ranks}, which is enough; "
    sizes = ", ".join(f"{name} {in_units(size)}" for name, size in parts.items() if size)
    over = memory.total - space.limit
    return (
        f"no layout of {space.world_size:,} ranks fits in {in_units(space.limit)}: the one that "
        f"needs least needs {in_units(memory.total)}, {in_units(over)} too much ({sizes})\n"
        f"It is: {' '.join(map(shlex.quote, topology.overrides()))}\n"
        f"Valid: {more}against the largest part, {largest}: {helps}"
    )


class CostRequest(NamedTuple):
    """The GPU, network, price and power that options or the machine name.

    Arguments:
        price, power: those that were typed, or else the machine's.
        timeline: the file to draw into.
    """

    name: str
    machine: Machine
    network: Network
    price: float | None
    power: float | None
    timeline: Path | None

    @property
    def title(self) -> str:
        """The name of the GPU for people."""
        return self.machine.title or self.name


def read_cost_options(arguments: Arguments) -> CostRequest:
    """Read the options; --gpu is given.

    Raises:
        SetpointError: there is no such machine, or the timeline cannot be written.
    """
    name = arguments.value(GPU.name)
    assert name is not None
    from setpoint.plan.machines import machine_named

    machine, network = machine_named(name, arguments.value(GPU_FILE.name))
    price, power = arguments.number(PRICE.name), arguments.number(POWER.name)
    timeline = arguments.value(TIMELINE.name)
    path = None if timeline is None else Path(timeline)
    if path is not None:
        from setpoint.report.page.write import refuse_foreign

        refuse_foreign(path, TIMELINE.name)
    return CostRequest(
        name,
        machine,
        network,
        machine.price if price is None else price,
        machine.power if power is None else power,
        path,
    )


class CostEstimate(NamedTuple):
    """The expected time of a step, and the cost of the run.

    Arguments:
        memory: of the planned rank; None where it is not known.
        cost: None where the duration is counted neither in steps nor in time.
    """

    request: CostRequest
    time: StepTime
    memory: RankMemory | None
    cost: Cost | None
    duration: str

    def to_json(self) -> dict[str, Any]:
        """The estimate for machines."""
        time = self.time
        return {
            "gpu": self.request.name,
            "seconds": time.seconds,
            "tokens_per_second": time.tokens_per_second,
            "mfu": time.mfu,
            "parts": dict(time.parts),
            "hidden": dict(time.hidden),
            "assumptions": list(time.assumptions),
            "cost": None if self.cost is None else self.cost._asdict(),
        }

    def facts(self) -> list[tuple[str, str]]:
        """Names and values of the step and of the run."""
        from setpoint.plan.timeline import seconds

        time, cost = self.time, self.cost
        each = time.tokens_per_second / time.ranks
        rows = [
            ("step", seconds(time.seconds)),
            ("tokens per second", f"{time.tokens_per_second:,.0f}, {each:,.0f} a GPU"),
            ("MFU", f"{time.mfu:.1%} (formula palm)"),
        ]
        if self.memory is not None and not self.memory.unknown:
            rows.append(("memory of a rank", self._memory_text(self.memory.total)))
        if cost is None:
            return [*rows, ("run", f"unknown: duration = {self.duration} counts no steps or time")]
        rows.append(("run", f"{cost.steps:,} steps, {_hours(cost.seconds)}"))
        rows.append(("GPU-hours", _number(cost.gpu_hours)))
        rows.append(("price", UNPRICED if cost.money is None else _money(cost.money)))
        if cost.kilowatt_hours is not None:
            power = f"at {self.request.power:g} W a GPU, without cooling (PUE 1)"
            rows.append(("energy", f"{_number(cost.kilowatt_hours)} kWh {power}"))
        return rows

    def _memory_text(self, size: int) -> str:
        has = int(self.request.machine.memory)
        if size <= has:
            return f"{in_units(size)} of {in_units(has)}"
        return f"{in_units(size)}, which is more than the {in_units(has)} of a GPU"

    def render(self) -> str:
        """The estimate for people."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        from setpoint.plan.timeline import draw, seconds

        time = self.time
        yield bold(f"expected on {time.ranks:,} x {self.request.title}")
        yield table([(f"  {name}", value) for name, value in self.facts()])
        yield ""
        yield bold("time of a step on the slowest rank")
        yield table(
            [
                (f"  {name}", seconds(each), f"{each / time.seconds:.1%}")
                for name, each in time.parts.items()
            ]
        )
        for name, each in time.hidden.items():
            yield f"  beside it: {name}, {seconds(each)}"
        yield ""
        yield draw(time.draw())
        yield ""
        yield bold("assumed")
        for each in time.assumptions:
            yield wrapped(each, "  ")

    def write(self, title: str) -> None:
        """Draw the step into the file of --timeline."""
        path = self.request.timeline
        if path is None:
            return
        from setpoint.plan.timeline import Page, html_of
        from setpoint.report.page.write import write_page

        time = self.time
        page = Page(
            f"{title} on {time.ranks:,} x {self.request.title}",
            self.facts(),
            time.parts,
            time.assumptions,
            time.draw(),
        )
        write_page(html_of(page), path)


def estimate_cost(
    request: CostRequest,
    job: Job,
    workload: Workload,
    topology: Topology,
    memory: RankMemory | None,
) -> CostEstimate:
    """Compute the expected time and cost of a job.

    Raises:
        SetpointError: the machine has no peak for the format, or the run ends before its first
            step.
    """
    from setpoint.plan.machines import cost_of
    from setpoint.plan.part_time import Kernels
    from setpoint.plan.step_time import step_time
    from setpoint.train.batch import limits_of

    time = step_time(workload, topology, request.machine, request.network, Kernels.of(job))
    limits = limits_of(job.duration, job.batch)
    cost = cost_of(limits, time.seconds, time.ranks, request.price, request.power)
    return CostEstimate(request, time, memory, cost, str(job.duration))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _money(value: float) -> str:
    return f"{value:,.2f}" if value >= 1 else f"{value:.3g}"


def _hours(seconds: float) -> str:
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
