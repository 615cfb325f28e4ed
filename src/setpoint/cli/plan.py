"""`setpoint plan`: the fastest topologies of a job on so many GPUs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from setpoint.cli.expected import Asked, asked_of, expect
from setpoint.cli.options import (
    COMMON,
    GPU,
    GPU_OPTIONS,
    JSON,
    SOURCE_HELP,
    WORLD_SIZE,
    Arguments,
    Command,
    Option,
)
from setpoint.cli.output import bold, table
from setpoint.cli.source import open_source
from setpoint.config import (
    COMMAND_LINE,
    ENVIRONMENT,
    ConfigError,
    Recorded,
    SetpointError,
    chain_of,
)
from setpoint.config import FILE as FILES
from setpoint.units.size import ByteSize, in_units

if TYPE_CHECKING:
    from setpoint.config import Composition
    from setpoint.plan.search import Candidate, SearchResult, SearchSpace
    from setpoint.plan.topology import Topology
    from setpoint.train.config import Job

MEMORY = Option("--memory", "Bytes of a GPU to use, such as 72GiB; default: nine tenths.", "SIZE")
TOP = Option("--top", "How many topologies to print; default: 10.", "N")
DEFAULTS = (
    *(f"parallel.{axis}=1" for axis in ("pipeline", "replicate", "shard", "ring", "ulysses")),
    "parallel.tensor=1",
    "parallel.expert_tensor=1",
    "activation_checkpointing=null",
)
"""Ends of overrides that say what is so already, unless a preset says something else."""
WRITTEN = (FILES, ENVIRONMENT, COMMAND_LINE)
COMMAND = Command(
    "plan",
    "SOURCE [OVERRIDES]",
    "Search the degrees of all axes, micro-batches, recomputation and the schedule of a pipeline\n"
    "for the shortest expected step on --world-size N GPUs, within their memory, and print the\n"
    "best as overrides, each resolved with all rules. What a file, the environment or an\n"
    "override sets stays as it is. Nothing is built and torch is not imported; the tensor axis\n"
    "stays within a node, and a pipeline has 16 ranks at most, unless they are set.\n"
    + SOURCE_HELP,
    [*COMMON, WORLD_SIZE, *GPU_OPTIONS, MEMORY, TOP, JSON],
    [
        ("setpoint plan llama3-70b --gpu h100 --world-size 64", "the best ten"),
        ("setpoint plan exp.toml --gpu a100 --world-size 16 --memory 64GiB", "with less memory"),
        ("setpoint plan exp.toml --gpu h100 --world-size 64 --parallel.tensor 8", "one axis fixed"),
    ],
)


@COMMAND
def run(arguments: Arguments) -> int:
    """Search, and print what was found."""
    from setpoint.plan.search import least_memory, search
    from setpoint.train.config import Job

    if not arguments.has(GPU.name):
        raise SetpointError("--gpu NAME is missing: on what GPU the job runs, such as h100")
    asked = asked_of(arguments)
    composition = open_source(arguments.source, arguments)
    if not isinstance(composition.draft, Job):
        raise SetpointError(
            f"a {type(composition.draft).__name__} trains nothing; `setpoint plan` takes a job"
        )
    job, space = _space(composition, asked, _limit(arguments, asked))
    wanted = arguments.integer(TOP.name) or 10
    found = search(space, wanted)
    if not found.best:
        raise SetpointError(_too_large(space, *least_memory(space)))
    best, refused = _resolved(found, arguments, space, wanted)
    if not best:
        assert refused is not None
        raise refused
    first = best[0]
    expected = expect(asked, job, space.workload, first[1].topology, first[1].memory)
    expected.write(composition.label)
    if arguments.has(JSON.name):
        import json

        print(json.dumps(_facts(space, found, best) | {"first": expected.to_json()}, indent=2))
        return 0
    title = f"{composition.label} on {space.world_size:,} x {asked.machine.title or asked.name}"
    print("\n".join(_lines(title, space, found, best)))
    rows = [each for each in expected.facts() if each[0] in ("run", "GPU-hours", "price", "energy")]
    print(f"\n{bold('the first of them')}\n{table([(f'  {a}', b) for a, b in rows])}")
    print(f"  details: setpoint check {arguments.source} --plan --gpu {asked.name} --world-size "
          f"{space.world_size} and its overrides")  # fmt: skip
    return 0


def _limit(arguments: Arguments, asked: Asked) -> int:
    """Bytes of a rank."""
    has, given = int(asked.machine.memory), arguments.value(MEMORY.name)
    if given is None:
        return asked.machine.usable
    try:
        limit = ByteSize(given)
    except (SetpointError, ValueError):
        raise SetpointError(f"--memory is a size such as 72GiB, got {given!r}") from None
    if not 0 < limit <= has:
        raise SetpointError(
            f"--memory {given}: {asked.machine.title or asked.name} has {in_units(has)}\n"
            f"Valid: more than 0, up to that, or another --gpu"
        )
    return limit


def _space(composition: Composition[Any], asked: Asked, limit: int) -> tuple[Job, SearchSpace]:
    """The job on one rank, and what is searched."""
    from setpoint.parallel.config import AXES, REST, Parallel
    from setpoint.plan.search import SearchSpace
    from setpoint.plan.step_time import Kernels
    from setpoint.plan.topology import Recompute, Topology
    from setpoint.plan.workload import Workload

    draft = composition.draft
    given, batch, section = draft.parallel, draft.batch, draft.memory.activation_checkpointing
    size = given.world_size
    if size < 2:
        raise SetpointError(
            "--world-size N is missing, or 1: a topology is a way to divide a job among GPUs\n"
            "Valid: 2 or more; `setpoint check --plan --gpu` expects the step of one GPU"
        )
    for field, is_given in (("engine", given.uses_deepspeed), ("torchft", given.torchft)):
        if is_given:
            raise SetpointError(f"parallel.{field}: what it sends is not known here. Leave it out")
    fixed: dict[str, Any] = {}
    for name in (*AXES, "expert", "expert_tensor", "sequence_parallel", "reshard"):
        if _is_written(given, name) and getattr(given, name) not in (REST, None):
            fixed[name] = getattr(given, name)
    pipelining = given.pipelining
    for name in ("schedule", "stages_per_rank", "split"):
        if _is_written(pipelining, name) and getattr(pipelining, name) is not None:
            fixed[name] = getattr(pipelining, name)
    sizes = {name: _is_written(batch, name) for name in ("micro_size", "accumulation")}
    has_total = bool(chain_of(batch, "global_size"))
    if any(sizes.values()) and not has_total:
        raise SetpointError(
            "batch.global_size is not given, and would be another for each topology\nValid: the "
            "sequences of a step, and micro_size and accumulation left free"
        )
    fixed |= {name: getattr(batch, name) for name, is_given in sizes.items() if is_given}
    if _is_written(draft.memory, "activation_checkpointing") or _is_typed(section):
        fixed["recompute"] = Recompute.of(section)
    start = Topology(
        recompute=fixed.get("recompute", Recompute()),
        every=1 if section is None else section.every,
        schedule=pipelining.schedule,
        split=fixed.get("split"),
        expert_tensor=fixed.get("expert_tensor", 1),
        loss_parallel=given.loss_parallel is not False,
        shard_over_context=given.shard_over_context,
        layers_per_unit=given.sharding.layers_per_unit,
        bucket=int(given.bucket_size * 2**20),
    )
    offload = given.sharding.offload
    draft.parallel = Parallel(device=given.device)
    if has_total:
        batch.micro_size, batch.accumulation = 1, batch.global_size
    if "recompute" not in fixed:
        draft.memory.activation_checkpointing = None
    job = composition.resolve()
    workload = Workload.of(job)._replace(weights_on_host=offload)
    if workload.unknown:
        raise SetpointError(
            f"the memory of a step is not known here: {workload.unknown}\n"
            f"Valid: `setpoint check --dry-run` of one topology, which may know"
        )
    kernels = Kernels.of(job)
    space = SearchSpace(workload, size, start, fixed, asked.machine, asked.network, kernels, limit)
    return job, space


def _is_written(section: Any, name: str) -> bool:
    """Whether a file, the environment or an override has set a field."""
    return any(_is_of_user(origin) for origin, _ in chain_of(section, name))


def _is_typed(section: Any) -> bool:
    """Whether one of them has set a field of a section."""
    names = () if section is None else section.__setpoint__.fields
    return any(_is_written(section, name) for name in names)


def _is_of_user(origin: Any) -> bool:
    return origin.layer in WRITTEN and not isinstance(origin, Recorded)


Resolved = tuple[list[str], "Candidate"]


def _resolved(
    found: SearchResult, arguments: Arguments, space: SearchSpace, wanted: int
) -> tuple[list[Resolved], ConfigError | None]:
    """Those that all rules accept, with their overrides; what refused the first of the others."""
    from setpoint.plan.topology import Topology

    best: list[Resolved] = []
    refused: ConfigError | None = None
    typed = list(arguments.overrides)
    for candidate in found.best:
        if len(best) == wanted:
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
    return best, refused


def _shape(topology: Topology) -> tuple[Any, ...]:
    """What a topology's overrides say of it."""
    return (*topology.degrees.values(), topology.micro_size, topology.recompute)


def _is_known(override: str, space: SearchSpace) -> bool:
    """Whether an override says what is fixed already."""
    path = override.removeprefix("--").partition("=")[0]
    if path.startswith("memory.activation_checkpointing"):
        return "recompute" in space.fixed
    return path.rpartition(".")[2] in space.fixed


def _facts(space: SearchSpace, found: SearchResult, best: list[Resolved]) -> dict[str, Any]:
    from setpoint.plan.topology import Recompute

    return {
        "world_size": space.world_size,
        "memory_limit": space.limit,
        "fixed": {
            name: str(value) if isinstance(value, Recompute) else value
            for name, value in space.fixed.items()
        },
        "meshes": found.meshes,
        "timed": found.timed,
        "unknown": found.unknown,
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
    title: str, space: SearchSpace, found: SearchResult, best: list[Resolved]
) -> Iterator[str]:
    from setpoint.plan.timeline import seconds

    yield bold(title)
    yield (
        f"  {found.meshes:,} meshes, {found.timed:,} topologies timed; at most "
        f"{in_units(space.limit)} a rank"
    )
    if found.unknown:
        yield f"  left out where the memory is not known here: {found.unknown}"
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
    """Why no topology fits, by how much, and what would help most."""
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
    held = ", ".join(f"{name} {in_units(size)}" for name, size in parts.items() if size)
    over = memory.total - space.limit
    return (
        f"no topology of {space.world_size:,} ranks fits in {in_units(space.limit)}: the one that "
        f"needs least needs {in_units(memory.total)}, {in_units(over)} too much ({held})\n"
        f"It is: {' '.join(map(shlex.quote, topology.overrides()))}\n"
        f"Valid: {more}against the largest part, {largest}: {helps}"
    )
