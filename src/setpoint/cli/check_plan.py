"""Details of `setpoint check`: the plan of a rank, a dry run, and settings that fit a GPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import gcd, inf, prod
from typing import TYPE_CHECKING, Any, NamedTuple

from setpoint.cli.output import bold, table
from setpoint.config import Caution, ConfigError, SetpointError
from setpoint.loss.config import CrossEntropy
from setpoint.memory.config import Full
from setpoint.model.attention.selection import HARDWARE
from setpoint.model.config import TransformerConfig
from setpoint.optim.grouping import GroupRow, gather, group_rows
from setpoint.parallel.engines import zero_settings
from setpoint.plan.machines import Machine, usable
from setpoint.plan.memory import RankMemory, rank_memory
from setpoint.plan.topology import Topology, coordinates, draw, shards_of
from setpoint.plan.traffic import Traffic, traffic
from setpoint.plan.workload import Workload, vocabulary_of
from setpoint.train.build.job_parameters import trained
from setpoint.train.config import Job
from setpoint.units.size import in_units

if TYPE_CHECKING:
    from setpoint.plan.dry_run import DryRun

PARTS = {
    "weights": "parameters",
    "masters": "master weights",
    "optimizer": "optimizer state",
    "gradients": "gradients",
    "buffers": "buffers",
    "activations": "activations",
    "recomputed": "backward of a layer",
    "logits": "logits and their loss",
    "gathered": "gathered weights and gradients",
    "on_host": "of which on the host",
}
FLOPS_FORMULA = (
    "3 times the forward pass: 2 for each parameter in matrix products, those of adapters "
    "included, and attention as a causal mask leaves it (palm_causal without adapters)"
)
"""By what the plan counts; the fact "FLOPs per token" follows `tracking.flops` instead."""
MOMENTS = {
    "loss": "when the loss is computed",
    "backward": "when the backward pass begins",
    "end": "when the backward pass ends",
    "update": "in the optimizer's step",
}
EXCEEDS = "memory-exceeds-gpu"
LACKS = "gpu-lacks-kernels"
"""Codes of the cautions."""
BF16 = 8.0
"""The first CUDA compute capability with products of bf16."""
MAX_RANKS = 2**16
"""The most ranks that are tried."""
RECOMPUTE = "--memory.activation_checkpointing"


@dataclass(frozen=True, slots=True)
class Plan:
    """Parameter groups of a job, and the memory and traffic of one rank.

    Arguments:
        groups: of parameters, as the optimizer gets them.
        memory, traffic: of the rank; None where DeepSpeed divides what it holds.
        deepspeed: the JSON that DeepSpeed is given; None where another engine trains.
    """

    groups: Sequence[GroupRow]
    workload: Workload
    topology: Topology
    rank: int
    memory: RankMemory | None
    traffic: Sequence[Traffic]
    deepspeed: dict[str, Any] | None

    @property
    def checkpoint(self) -> int:
        """Bytes that a checkpoint holds, of weights and optimizer state."""
        alone = rank_memory(self.workload, Topology())
        return alone.weights + alone.masters + alone.optimizer

    def to_json(self) -> dict[str, Any]:
        """The plan for machines."""
        at = coordinates(self.topology.degrees, self.rank)
        shards = shards_of(self.workload, self.topology, self.rank)
        plan: dict[str, Any] = {
            "groups": [row.to_json() for row in self.groups],
            "mesh": {"degrees": self.topology.degrees, "rank": self.rank, "at": at},
            "parameters": {"model": self.workload.parameters, "trained_here": shards.numbers},
            "flops_per_token": self.workload.flops_per_token,
            "flops_formula": FLOPS_FORMULA,
            "checkpoint": self.checkpoint,
            "memory": None if self.memory is None else self.memory.to_json(),
            "traffic": [{**row._asdict(), "sent": row.sent} for row in self.traffic],
        }
        return plan if self.deepspeed is None else {**plan, "deepspeed": self.deepspeed}

    def render(self) -> str:
        """The plan for people."""
        lines = [bold("parameter groups"), _groups(self.groups)]
        if self.topology.world_size > 1:
            lines += ["", bold(_title(self.topology.degrees, self.rank)), *self._mesh()]
        lines += ["", bold(f"memory of a rank {self._moment()}"), table(list(self._memory()))]
        if self.traffic:
            lines += ["", bold("sent in a step"), _traffic(self.traffic)]
        if self.deepspeed is not None:
            lines += ["", bold("DeepSpeed's settings"), json.dumps(self.deepspeed, indent=2)]
        return "\n".join(lines)

    def _mesh(self) -> Iterator[str]:
        rows = [(f"  {row[0]}", *row[1:]) for row in draw(self.topology.degrees, self.rank)]
        yield table(rows, ("  axis", "degree", "at", "ranks"))

    def _moment(self) -> str:
        if self.memory is None or self.memory.unknown:
            return "as far as it is known here"
        return MOMENTS[self.memory.moment]

    def _memory(self) -> Iterator[tuple[str, str]]:
        memory = self.memory
        if memory is None:
            yield "  all parts", "divided by DeepSpeed, unknown here"
            return
        for name, title in PARTS.items():
            size = getattr(memory, name)
            if name == "optimizer" and not self.workload.state_is_known:
                yield f"  {title}", "unknown here"
            elif name == "activations" and memory.unknown:
                yield f"  {title}", f"unknown here: {memory.unknown}; --fake-step may know"
            elif size:
                yield f"  {title}", in_units(size)
        yield "  total", in_units(memory.total)
        yield "  checkpoint, of all ranks", in_units(self.checkpoint)


def make_plan(job: Job, rank: int = 0) -> Plan:
    """Plan a job without building it, as far as that is possible.

    Raises:
        SetpointError: a file is missing, the model cannot be built, or there is no such rank.
    """
    topology = Topology.of(job)
    if rank >= topology.world_size:
        raise SetpointError(
            f"there is no rank {rank}: the job has {topology.world_size}\n"
            f"Valid: 0 to {topology.world_size - 1}"
        )
    vocabulary = vocabulary_of(job)
    workload = Workload.of(job, vocabulary)
    groups = group_rows(gather(job.optimizer, trained(job, vocabulary)), job.optimizer.lr)
    deepspeed = zero_settings(job)
    memory, sent = None, list[Traffic]()
    if not job.parallel.uses_deepspeed:
        memory, sent = rank_memory(workload, topology, rank), traffic(workload, topology, rank)
    return Plan(groups, workload, topology, rank, memory, sent, deepspeed)


def _title(degrees: dict[str, int], rank: int, what: str = "") -> str:
    size, at = prod(degrees.values()), coordinates(degrees, rank)
    place = ", ".join(f"{axis} {where}" for axis, where in at.items() if degrees[axis] > 1)
    return f"{what}rank {rank:,} of {size:,}{place and f' ({place})'}"


def _traffic(rows: Sequence[Traffic]) -> str:
    headings = ("  collective", "axes", "ranks", "calls", "messages", "sent by this rank")
    cells = [
        (f"  {row.kind}", row.axes, f"{row.ranks:,}", f"{row.calls:,}", in_units(row.bytes),
         in_units(row.sent))
        for row in rows
    ]  # fmt: skip
    return table(cells, headings)


def _groups(rows: Sequence[GroupRow]) -> str:
    headings = (
        "  group",
        "lr",
        "weight decay",
        "tensors",
        "parameters",
        "options",
        "first parameters",
    )
    cells: list[tuple[str, ...]] = []
    for row in rows:
        options = ", ".join(f"{name} = {_shown(value)}" for name, value in row.options.items())
        more = ", ..." if row.tensors > len(row.names) else ""
        cells.append(
            (
                f"  {row.name}",
                f"{row.lr:g}",
                f"{row.weight_decay:g}",
                f"{row.tensors:,}",
                f"{row.parameters:,}",
                options or "-",
                ", ".join(row.names) + more,
            )
        )
    return table(cells, headings)


def _shown(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)


def render_dry_run(result: DryRun) -> str:
    """A dry run for people."""
    title = _title(result.degrees, result.rank, "dry run of ")
    names = {
        "weights": "parameters",
        "masters": "master weights",
        "optimizer": "optimizer state",
        "gradients": "gradients",
        "buffers": "buffers",
        "rest": "activations, gathered weights, workspace",
    }
    sizes = [(f"  {names[name]}", size) for name, size in result.peak._asdict().items() if size]
    memory = [*sizes, ("  peak of a step", result.peak.total), ("  between steps", result.held)]
    parts = [
        bold(title),
        table([(name, in_units(size)) for name, size in memory]),
        f"  matrix products and attention: {result.flops:,} FLOPs a step",
    ]
    if result.layers is not None:
        few, more = result.layers
        parts.append(f"  layers that are alike: from steps of {few} and of {more} layers")
    if result.even_loads:
        parts.append("  experts: even loads, as many tokens to those of each rank")
    if result.traffic:
        parts += ["", _traffic(result.traffic)]
    return "\n".join(parts)


class Gpu(NamedTuple):
    """A GPU that a job is to run on, and its bytes of memory."""

    title: str
    memory: int


def gpu_of(machine: Machine | None, name: str, job: Job) -> Gpu | None:
    """The chosen GPU, or the one of this machine where torch is imported anyway."""
    if machine is not None:
        return Gpu(machine.title or name, int(machine.memory))
    torch: Any = sys.modules.get("torch")
    if torch is None or job.parallel.device == "cpu" or not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(0)
    return Gpu(properties.name, properties.total_memory)


def job_memory(job: Job, rank: int = 0) -> RankMemory:
    """The planned memory of a rank."""
    return rank_memory(Workload.of(job), Topology.of(job), rank)


def memory_caution(
    job: Job, memory: RankMemory, gpu: Gpu, change: Callable[[list[str]], Job]
) -> Caution | None:
    """Compare the memory of a rank with that of a GPU.

    Arguments:
        change: the job with more overrides.

    Returns:
        a caution with the settings by which the job fits; None if it fits already, or where its
        activations are not known.
    """
    limit = usable(gpu.memory)
    if memory.unknown or memory.total <= limit or EXCEEDS in job.silence:
        return None
    fitting = settings_that_fit(job, limit, change)
    if fitting is not None:
        settings, total = fitting
        hint = f"It takes {in_units(total)} with {' '.join(settings)}"
    else:
        more = ranks_that_fit(job, limit, change)
        hint = "No recomputation, chunked loss, sharding or smaller micro-batch makes it fit here"
        if more is not None:
            ranks, settings = more
            hint += f". On {ranks:,} ranks it fits {'with ' if settings else 'as it is'}"
            hint += " ".join(settings)
    return Caution(
        EXCEEDS,
        "memory",
        f"a rank takes {in_units(memory.total)}, and tensors have {in_units(limit)} of the "
        f"{in_units(gpu.memory)} of a GPU ({gpu.title}): the run would end out of memory",
        hint=f"{hint}.",
    )


def hardware_cautions(job: Job, machine: Machine) -> Iterator[Caution]:
    """Name number formats and kernels of a job that a GPU does not have."""
    capability = machine.capability
    if capability is None or LACKS in job.silence:
        return
    named = f"{machine.title} (compute capability {capability})"
    precision = job.precision
    if precision.compute == "bf16" and capability < BF16:
        yield Caution(
            LACKS, "precision.compute", f"bf16 has no products on {named}",
            hint=f"It needs {BF16} or more: compute in fp16 or fp32.",
        )  # fmt: skip
    if precision.float8 is not None and not precision.float8.emulate:
        needed, generation = precision.float8.capability
        if capability < float(f"{needed[0]}.{needed[1]}"):
            yield Caution(
                LACKS, "precision.float8.recipe",
                f"{precision.float8.recipe} has no products on {named}",
                hint=f"It needs {generation} or newer.",
            )  # fmt: skip
    if isinstance(job.model, TransformerConfig) and job.model.attention_backend in HARDWARE:
        least, most = HARDWARE[job.model.attention_backend]
        if not least <= capability <= most:
            bound = f"{least} or more" if most == inf else f"{least} to {most}"
            yield Caution(
                LACKS, "model.attention_backend",
                f"{job.model.attention_backend} has no kernels for {named}",
                hint=f"It needs {bound}; auto chooses by the GPU.",
            )  # fmt: skip


def settings_that_fit(
    job: Job, limit: int, change: Callable[[list[str]], Job]
) -> tuple[list[str], int] | None:
    """Find overrides with which a rank fits, the cheapest in time first.

    Returns:
        as few as make it fit, and the bytes of a rank with them; None if all of them do not.
    """
    texts: list[str] = []
    for step in _steps(job):
        # Of a field the last one holds.
        path = step[0].partition("=")[0]
        tried = [*(each for each in texts if each.partition("=")[0] != path), *step]
        total = _total(tried, change)
        if total is None:
            continue
        texts = tried
        if total <= limit:
            for text in list(texts[:-1]):
                fewer = [each for each in texts if each != text]
                less = _total(fewer, change)
                if less is not None and less <= limit:
                    texts, total = fewer, less
            return texts, total
    return None


def ranks_that_fit(
    job: Job, limit: int, change: Callable[[list[str]], Job]
) -> tuple[int, list[str]] | None:
    """Find how many ranks that shard the weights are enough, in powers of two.

    Returns:
        the number, and the overrides with which they are; None where no number is enough.
    """
    texts: list[str] = []
    for step in _steps(job):
        path = step[0].partition("=")[0]
        tried = [*(each for each in texts if each.partition("=")[0] != path), *step]
        if _total(tried, change) is not None:
            texts = tried
    ways = [(job, list[str]()), (change(texts), texts)]
    planned = [(Workload.of(each), Topology.of(each), t) for each, t in ways]
    times = 2
    while planned[0][1].world_size * times <= MAX_RANKS:
        for workload, topology, settings in planned:
            larger = topology._replace(shard=topology.shard * times)
            if rank_memory(workload, larger).total <= limit:
                return larger.world_size, settings
        times *= 2
    return None


def _steps(job: Job) -> Iterator[list[str]]:
    """Overrides that save memory, each with those before it."""
    if type(job.loss) is CrossEntropy:
        yield ["--loss=chunked_cross_entropy"]
    ranks, moe = job.parallel.world_size, getattr(job.model, "moe", None)
    if moe is not None and job.parallel.expert == 1:
        for degree in (8, 64):
            if gcd(ranks, moe.experts) % degree == 0:
                yield [f"--parallel.expert={degree}"]
    if job.parallel.degrees["replicate"] > 1:
        yield ["--parallel.shard=-1", "--parallel.replicate=null"]
    section = job.memory.activation_checkpointing
    if section is None:
        yield [f"{RECOMPUTE}=operators"]
    if not isinstance(section, Full) or section.every > 1:
        more = [f"{RECOMPUTE}.every=1"] if section is not None and section.every > 1 else []
        yield [f"{RECOMPUTE}=full", *more]
    size = job.batch.micro_size
    halves = (size // 2**times for times in range(1, size.bit_length()))
    for each in takewhile(lambda each: each > 0, halves):
        if size % each == 0:
            count = job.batch.accumulation * size // each
            yield [f"--batch.micro_size={each}", f"--batch.accumulation={count}"]


def _total(texts: list[str], change: Callable[[list[str]], Job]) -> int | None:
    """Bytes of a rank with overrides; None where rules refuse them, or it is not known."""
    try:
        memory = job_memory(change(texts))
    except ConfigError:
        return None
    return None if memory.unknown else memory.total
