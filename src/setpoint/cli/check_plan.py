"""Details of `setpoint check`: the plan of a rank, a dry run, and settings that fit a GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from setpoint.cli.output import bold, table
from setpoint.config import SetpointError, plural
from setpoint.optim.grouping import Gathered, gather
from setpoint.parallel.engines import zero_settings
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
    "3 times the forward pass: 2 for each parameter in matrix products, adapters "
    "included, and attention under a causal mask (palm_causal without adapters)"
)
"""FLOPs formula of the plan; the fact "FLOPs per token" follows `tracking.flops` instead."""
MOMENTS = {
    "loss": "when the loss is computed",
    "backward": "when the backward pass begins",
    "end": "when the backward pass ends",
    "update": "in the optimizer's step",
}


@dataclass(frozen=True, slots=True)
class PlanReport:
    """Parameter groups of a job, and memory and traffic of one rank (None with DeepSpeed)."""

    groups: Sequence[Gathered]
    workload: Workload
    topology: Topology
    rank: int
    memory: RankMemory | None
    traffic: Sequence[Traffic]
    deepspeed: dict[str, Any] | None

    @property
    def checkpoint(self) -> int:
        """Bytes of weights and optimizer state in a checkpoint."""
        alone = rank_memory(self.workload, Topology())
        return alone.weights + alone.masters + alone.optimizer

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON."""
        position = coordinates(self.topology.degrees, self.rank)
        shards = shards_of(self.workload, self.topology, self.rank)
        plan: dict[str, Any] = {
            "groups": [group.to_json() for group in self.groups],
            "mesh": {"degrees": self.topology.degrees, "rank": self.rank, "at": position},
            "parameters": {"model": self.workload.parameters, "trained_here": shards.numbers},
            "flops_per_token": self.workload.flops_per_token,
            "flops_formula": FLOPS_FORMULA,
            "checkpoint": self.checkpoint,
            "memory": None if self.memory is None else self.memory.to_json(),
            "traffic": [{**row._asdict(), "sent": row.sent} for row in self.traffic],
        }
        return plan if self.deepspeed is None else {**plan, "deepspeed": self.deepspeed}

    def render(self) -> str:
        """The plan as text."""
        lines = [bold("parameter groups"), _groups(self.groups)]
        degrees, memory = self.topology.degrees, self.memory
        if self.topology.world_size > 1:
            rows = [(f"  {row[0]}", *row[1:]) for row in draw(degrees, self.rank)]
            mesh = table(rows, ("  axis", "degree", "at", "ranks"))
            lines += ["", bold(_title(degrees, self.rank)), mesh]
        moment = "as far as it is known"
        if memory is not None and not memory.unknown:
            moment = MOMENTS[memory.moment]
        lines += ["", bold(f"memory of a rank {moment}"), table(list(self._memory()))]
        if self.traffic:
            lines += ["", bold("sent in a step"), _traffic(self.traffic)]
        if self.deepspeed is not None:
            lines += ["", bold("DeepSpeed's settings"), json.dumps(self.deepspeed, indent=2)]
        return "\n".join(lines)

    def _memory(self) -> Iterator[tuple[str, str]]:
        memory = self.memory
        if memory is None:
            yield "  all parts", "unknown: divided by DeepSpeed"
            return
        for name, title in PARTS.items():
            size = getattr(memory, name)
            if name == "optimizer" and (optimizer := self.workload.unknown_state):
                yield f"  {title}", f"unknown for optimizer {optimizer}; --fake-step may measure it"
            elif name == "activations" and memory.unknown:
                yield f"  {title}", f"unknown: {memory.unknown}; --fake-step may measure it"
            elif size:
                yield f"  {title}", in_units(size)
        without = ", without optimizer state" * bool(self.workload.unknown_state)
        yield f"  total{without}", in_units(memory.total)
        yield f"  checkpoint, of all ranks{without}", in_units(self.checkpoint)


def make_plan(job: Job, rank: int = 0) -> PlanReport:
    """Plan a job without building it, as far as possible."""
    topology = Topology.of(job)
    if rank >= topology.world_size:
        raise SetpointError(
            f"rank {rank} does not exist: the job has {plural(topology.world_size, 'rank')}\n"
            f"Valid: 0 to {topology.world_size - 1}"
        )
    vocabulary = vocabulary_of(job)
    workload = Workload.of(job, vocabulary)
    groups = gather(job.optimizer, trained(job, vocabulary))
    deepspeed = zero_settings(job)
    memory, sent = None, list[Traffic]()
    if not job.parallel.uses_deepspeed:
        memory, sent = rank_memory(workload, topology, rank), traffic(workload, topology, rank)
    return PlanReport(groups, workload, topology, rank, memory, sent, deepspeed)


def _title(degrees: dict[str, int], rank: int, what: str = "") -> str:
    size, position = prod(degrees.values()), coordinates(degrees, rank)
    place = ", ".join(f"{axis} {where}" for axis, where in position.items() if degrees[axis] > 1)
    return f"{what}rank {rank:,} of {size:,}{place and f' ({place})'}"


def _traffic(rows: Sequence[Traffic]) -> str:
    headings = ("  collective", "axes", "ranks", "calls", "messages", "sent by this rank")
    cells = [
        (f"  {row.kind}", row.axes, f"{row.ranks:,}", f"{row.calls:,}", in_units(row.bytes),
         in_units(row.sent))
        for row in rows
    ]  # fmt: skip
    return table(cells, headings)


def _groups(groups: Sequence[Gathered]) -> str:
    headings = ("  group", "lr", "weight decay", "tensors", "parameters", "options",
                "first parameters")  # fmt: skip
    cells: list[tuple[str, ...]] = []
    for group in groups:
        row = group.to_json()
        options = ", ".join(f"{name} = {value}" for name, value in row["options"].items())
        more = ", ..." if row["tensors"] > len(row["names"]) else ""
        rates = f"{group.lr:g}", f"{group.weight_decay:g}"
        counts = f"{row['tensors']:,}", f"{row['parameters']:,}"
        names = ", ".join(row["names"]) + more
        cells.append((f"  {group.name}", *rates, *counts, options or "-", names))
    return table(cells, headings)


def render_dry_run(result: DryRun) -> str:
    """A dry run as text."""
    title = _title(result.degrees, result.rank, "dry run of ")
    names = {**PARTS, "rest": "activations, gathered weights, workspace"}
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
        parts.append("  experts: even loads, the same number of tokens for each rank")
    if result.traffic:
        parts += ["", _traffic(result.traffic)]
    return "\n".join(parts)
