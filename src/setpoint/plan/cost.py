"""Expected step time on a named GPU, and the cost of a run."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple, Self

from setpoint.config import SetpointError, plural
from setpoint.plan.gpus import GpuSpec, Network
from setpoint.plan.memory import RankMemory
from setpoint.plan.part_time import Kernels
from setpoint.plan.step_time import StepTime, step_time
from setpoint.plan.timeline import Page, html_of, seconds
from setpoint.plan.topology import Topology
from setpoint.plan.workload import Workload
from setpoint.report.page.html import write_page
from setpoint.train.config import Job, limits_of
from setpoint.units.size import in_units

UNPRICED = "unknown: no --price"
HOUR = 3600.0
PUE = 1.0
"""Power usage effectiveness (PUE) of the data center; 1: without cooling and losses."""


class Cost(NamedTuple):
    """Cost of a run on all its GPUs.

    Arguments:
        steps: expected number of steps.
        money: cost in the currency of the price; None without a price.
        kilowatt_hours: energy of the GPUs only; None if their power is unknown.
    """

    steps: int
    seconds: float
    gpu_hours: float
    money: float | None
    kilowatt_hours: float | None


def cost_of(
    limits: Mapping[str, float],
    step: float,
    ranks: int,
    price: float | None = None,
    power: float | None = None,
) -> Cost | None:
    """Compute the cost of a run up to the first limit it reaches.

    Arguments:
        limits: limits of the duration, in steps and seconds; other units are ignored.
        step: expected seconds per step, in the mean.
        price: price per GPU-hour.
        power: watts per GPU.

    Returns:
        None if neither steps nor seconds limit the run.

    Raises:
        SetpointError: the time limit is shorter than the first step.
    """
    duration, steps = limits.get("seconds"), limits.get("steps")
    if duration is not None and duration < step:
        raise SetpointError(
            f"duration = {duration:g} s ends before the first step, which is expected to take "
            f"{step:.3g} s\nValid: {ceil(step)} s or more, or a duration in steps"
        )
    counts = [] if steps is None else [int(steps)]
    if duration is not None:
        counts.append(int(duration // step))
    if not counts:
        return None
    count = min(counts)
    total = count * step
    hours = total / HOUR * ranks
    energy = None if power is None else hours * power * PUE / 1000
    return Cost(count, total, hours, None if price is None else hours * price, energy)


class CostRequest(NamedTuple):
    """GPU with its network, price and power, and the file of the timeline."""

    name: str
    gpu: GpuSpec
    network: Network
    price: float | None
    power: float | None
    timeline: Path | None

    @classmethod
    def of(
        cls,
        name: str,
        known: tuple[GpuSpec, Network],
        price: float | None = None,
        power: float | None = None,
        timeline: Path | None = None,
    ) -> Self:
        """The request for a GPU in the table; its price and power apply unless others are given."""
        gpu, network = known
        price = gpu.price if price is None else price
        power = gpu.power if power is None else power
        return cls(name, gpu, network, price, power, timeline)

    @property
    def title(self) -> str:
        """Display name of the GPU."""
        return self.gpu.title or self.name


class CostEstimate(NamedTuple):
    """Expected step time, and the cost of the run unless its duration is in tokens."""

    request: CostRequest
    time: StepTime
    memory: RankMemory | None
    cost: Cost | None
    duration: str

    def to_json(self) -> dict[str, Any]:
        """The estimate as JSON."""
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
        """Names and values of the step and the run."""
        time, cost = self.time, self.cost
        per_rank = time.tokens_per_second / time.ranks
        rows = [
            ("step", seconds(time.seconds)),
            ("tokens per second", f"{time.tokens_per_second:,.0f}, {per_rank:,.0f} per GPU"),
            ("MFU", f"{time.mfu:.1%} (formula palm)"),
        ]
        if self.memory is not None and not self.memory.unknown:
            size, has = self.memory.total, int(self.request.gpu.memory)
            words = "of" if size <= has else "exceeds the GPU's"
            rows.append(("memory of a rank", f"{in_units(size)} {words} {in_units(has)}"))
        if cost is None:
            return [*rows, ("run", f"unknown: duration = {self.duration} is not in steps or time")]
        rows.append(("run", f"{plural(cost.steps, 'step')}, {_hours(cost.seconds)}"))
        rows.append(("GPU-hours", _number(cost.gpu_hours)))
        money = cost.money
        price = UNPRICED if money is None else f"{money:,.2f}" if money >= 1 else f"{money:.3g}"
        rows.append(("price", price))
        if cost.kilowatt_hours is not None:
            power = f"at {self.request.power:g} W per GPU, without cooling (PUE 1)"
            rows.append(("energy", f"{_number(cost.kilowatt_hours)} kWh {power}"))
        return rows

    def write(self, title: str) -> None:
        """Write the timeline of the step to the file given by --timeline."""
        path = self.request.timeline
        if path is None:
            return
        time = self.time
        title = f"{title} on {time.ranks:,} x {self.request.title}"
        page = Page(title, self.facts(), time.parts, time.assumptions, time.draw())
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
        SetpointError: the GPU has no peak for the format, or the run ends before its first step.
    """
    time = step_time(workload, topology, request.gpu, request.network, Kernels.of(job))
    limits, batch = limits_of(job.duration, job.batch), job.batch
    seconds = time.seconds
    if batch.ramp is not None and "steps" in limits:  # a smaller batch has fewer micro-batches
        steps = int(limits["steps"])
        seconds *= batch.sequences_before(steps) / (steps * batch.global_size)
    cost = cost_of(limits, seconds, time.ranks, request.price, request.power)
    return CostEstimate(request, time, memory, cost, str(job.duration))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _hours(seconds: float) -> str:
    units = ((86400.0, "days"), (3600.0, "h"), (60.0, "min"), (0.0, "s"))
    size, unit = next(pair for pair in units if seconds >= 2 * pair[0])
    return f"{seconds / (size or 1):.3g} {unit}"
