"""What `setpoint check --plan` shows of a job beside its checks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from setpoint.cli.style import bold, table
from setpoint.optim.grouping import GroupRow
from setpoint.train.build.memory_plan import MemoryPlan
from setpoint.train.config import Job
from setpoint.units.size import in_units

if TYPE_CHECKING:
    from setpoint.dry_run.step import DryRun


class Plan:
    """What a run would be made of.

    Arguments:
        groups: of parameters, as the optimizer gets them.
        memory: how much each part takes.
        deepspeed: the JSON that DeepSpeed is given; None where another engine trains.
    """

    __slots__ = ("deepspeed", "groups", "memory")

    def __init__(
        self, groups: Sequence[GroupRow], memory: MemoryPlan, deepspeed: dict[str, Any] | None
    ) -> None:
        self.groups, self.memory, self.deepspeed = groups, memory, deepspeed

    def to_json(self) -> dict[str, Any]:
        """The plan for machines."""
        groups = [row.to_json() for row in self.groups]
        plan = {"groups": groups, "memory": self.memory.to_json()}
        return plan if self.deepspeed is None else {**plan, "deepspeed": self.deepspeed}

    def render(self) -> str:
        """The plan for people."""
        groups = [bold("parameter groups"), _groups(self.groups)]
        lines = [*groups, "", bold("memory"), _memory(self.memory)]
        if self.deepspeed is not None:
            lines += ["", bold("DeepSpeed's settings"), json.dumps(self.deepspeed, indent=2)]
        return "\n".join(lines)


def make_plan(job: Job) -> Plan:
    """Plan a job without building it, as far as that is possible.

    Raises:
        SetpointError: what decides it is not here, or the model cannot be built.
    """
    from setpoint.plan.groups import planned_groups, vocabulary_of
    from setpoint.train.build.memory_plan import planned_memory
    from setpoint.train.build.zero import zero_settings

    memory = planned_memory(job, vocabulary_of(job))
    return Plan(planned_groups(job), memory, zero_settings(job))


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


def _memory(plan: MemoryPlan) -> str:
    held, state = plan.activations, plan.optimizer_state
    sizes = {
        "parameters": plan.parameters,
        "master weights": plan.masters,
        "gradients": plan.gradients,
        "optimizer state": state,
        "of which on the host": plan.on_host,
        "averaged weights, while evaluated": plan.averaged,
        "activations of a micro-batch": None if held is None else held.kept,
        "recomputation of a layer": 0 if held is None else held.again,
        "logits and their loss": None if held is None else held.logits,
    }
    known = [(f"  {what}", in_units(size)) for what, size in sizes.items() if size]
    unknown = [(f"  {what}", "unknown here") for what, size in sizes.items() if size is None]
    more = "" if not unknown else ", without the unknown parts"
    return table([*known, *unknown, ("  total at most", in_units(plan.total) + more)])


def _shown(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)


def render_dry_run(found: DryRun) -> str:
    """A dry run for people."""
    place = ", ".join(f"{axis} {at}" for axis, at in found.at.items() if found.degrees[axis] > 1)
    title = f"dry run of rank {found.rank} of {found.world_size:,}"
    names = {
        "weights": "parameters",
        "masters": "master weights",
        "optimizer": "optimizer state",
        "gradients": "gradients",
        "buffers": "buffers",
        "rest": "activations, gathered weights, workspace",
    }
    sizes = [(f"  {names[name]}", size) for name, size in found.peak._asdict().items() if size]
    memory = [*sizes, ("  peak of a step", found.peak.total), ("  between steps", found.held)]
    parts = [
        bold(f"{title}{place and f' ({place})'}"),
        table([(name, in_units(size)) for name, size in memory]),
        f"  matrix products and attention: {found.flops:,} FLOPs a step",
    ]
    if found.traffic:
        rows = [
            (f"  {row.kind}", row.axes, f"{row.ranks:,}", f"{row.calls:,}", in_units(row.bytes),
             in_units(row.sent))
            for row in found.traffic
        ]  # fmt: skip
        headings = ("  collective", "axes", "ranks", "calls", "messages", "sent by this rank")
        parts += ["", table(rows, headings)]
    return "\n".join(parts)
