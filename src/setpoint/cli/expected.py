"""What is shown of the expected time and cost of a step, and the options that ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from setpoint.cli.options import (
    GPU,
    GPU_OPTIONS,
    MACHINES,
    POWER,
    PRICE,
    TIMELINE,
    Arguments,
)
from setpoint.cli.output import bold, table, wrapped
from setpoint.config import SetpointError
from setpoint.units.size import in_units

if TYPE_CHECKING:
    from setpoint.plan.machines import Cost, Machine, Network
    from setpoint.plan.memory import RankMemory
    from setpoint.plan.step_time import StepTime
    from setpoint.plan.topology import Topology
    from setpoint.plan.workload import Workload
    from setpoint.train.config import Job

UNPRICED = "unknown: no --price"


class Asked(NamedTuple):
    """What the options say.

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


def asked_of(arguments: Arguments) -> Asked:
    """Read the options, one of which is given.

    Raises:
        SetpointError: there is no such machine, or an option has no effect.
    """
    name = arguments.value(GPU.name)
    if name is None:
        given = next(each.name for each in GPU_OPTIONS if arguments.has(each.name))
        raise SetpointError(f"{given} has no effect without {GPU.name}. Add {GPU.name} NAME")
    from setpoint.plan.machines import machine_named

    machine, network = machine_named(name, arguments.value(MACHINES.name))
    price, power = arguments.number(PRICE.name, 0), arguments.number(POWER.name, 0)
    timeline = arguments.value(TIMELINE.name)
    path = None if timeline is None else Path(timeline)
    if path is not None:
        from setpoint.report.page.write import refuse_foreign

        refuse_foreign(path, TIMELINE.name)
    return Asked(
        name,
        machine,
        network,
        machine.price if price is None else price,
        machine.power if power is None else power,
        path,
    )


class Expected(NamedTuple):
    """The expected time of a step, and what the run costs.

    Arguments:
        memory: of the rank that the plan looks at; None where it is not known.
        cost: None where the duration is counted neither in steps nor in time.
    """

    asked: Asked
    time: StepTime
    memory: RankMemory | None
    cost: Cost | None
    duration: str

    def to_json(self) -> dict[str, Any]:
        """It for machines."""
        time = self.time
        return {
            "gpu": self.asked.name,
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
            rows.append(("memory of a rank", self._room(self.memory.total)))
        if cost is None:
            return [*rows, ("run", f"unknown: duration = {self.duration} counts no steps or time")]
        rows.append(("run", f"{cost.steps:,} steps, {_hours(cost.seconds)}"))
        rows.append(("GPU-hours", _number(cost.gpu_hours)))
        rows.append(("price", UNPRICED if cost.money is None else _money(cost.money)))
        if cost.kilowatt_hours is not None:
            power = f"at {self.asked.power:g} W a GPU, without cooling (PUE 1)"
            rows.append(("energy", f"{_number(cost.kilowatt_hours)} kWh {power}"))
        return rows

    def _room(self, size: int) -> str:
        has = int(self.asked.machine.memory)
        if size <= has:
            return f"{in_units(size)} of {in_units(has)}"
        return f"{in_units(size)}, which is more than the {in_units(has)} of a GPU"

    def render(self) -> str:
        """It for people."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        from setpoint.plan.timeline import draw, seconds

        time = self.time
        yield bold(f"expected on {time.ranks:,} x {self.asked.machine.title or self.asked.name}")
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
        """Draw the step into the file that was asked for."""
        path = self.asked.timeline
        if path is None:
            return
        from setpoint.plan.timeline import Page, html_of
        from setpoint.report.page.write import write_page

        time = self.time
        name = self.asked.machine.title or self.asked.name
        page = Page(
            f"{title} on {time.ranks:,} x {name}",
            self.facts(),
            time.parts,
            time.assumptions,
            time.draw(),
        )
        write_page(html_of(page), path)


def expect(
    asked: Asked, job: Job, workload: Workload, topology: Topology, memory: RankMemory | None
) -> Expected:
    """Compute the expected time and cost of a job.

    Raises:
        SetpointError: the machine has no peak for the format, or the run ends before its first
            step.
    """
    from setpoint.plan.machines import cost_of
    from setpoint.plan.part_time import Kernels
    from setpoint.plan.step_time import step_time
    from setpoint.train.batch import limits_of

    time = step_time(workload, topology, asked.machine, asked.network, Kernels.of(job))
    limits = limits_of(job.duration, job.batch)
    cost = cost_of(limits, time.seconds, time.ranks, asked.price, asked.power)
    return Expected(asked, time, memory, cost, str(job.duration))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _money(value: float) -> str:
    return f"{value:,.2f}" if value >= 1 else f"{value:.3g}"


def _hours(seconds: float) -> str:
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
