"""Learning-rate curve of a job, before it runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import ceil, inf, isfinite
from typing import TYPE_CHECKING, NamedTuple

from setpoint.config import SetpointError, plural
from setpoint.optim.curves import ScheduleTime, measure, nearest, phase_ends
from setpoint.optim.schedule import Piecewise, Plateau
from setpoint.train.config import steps_before
from setpoint.units import Duration

if TYPE_CHECKING:
    from setpoint.train.config import Job

DRAWN = 1000  # minimum number of steps drawn if their number is unknown
ROWS = 100_000  # more than is readable


class Point(NamedTuple):
    """Point of the curve.

    Attributes:
        step: number of the step, from 0.
        at: start of the step, in the unit of the curve.
        factor: multiple of the peak learning rate.
        lr: learning rate.
    """

    step: int
    at: float
    factor: float
    lr: float


class Curve(NamedTuple):
    """Learning-rate curve of a job.

    Attributes:
        length: length of the curve.
        unit: unit of positions: `"steps"`, or that of the duration if the number of steps is
            unknown.
        points: sampled points, including the first and the last.
        highest: first step with the highest learning rate.
        notes: effects that the curve does not show.
    """

    length: Duration
    unit: str
    points: Sequence[Point]
    highest: Point
    notes: Sequence[str]


def draw_curve(job: Job, steps: int | None = None, every: int = 0, most: int = 1000) -> Curve:
    """Compute the learning rate of a job step by step.

    If only the data or the clock determines the number of steps, the curve spans the duration in
    its own unit, with an assumed number of steps.

    Arguments:
        steps: number of steps; None: as determined by the duration of the run, if possible.
        every: sample steps that are multiples of this; 0: evenly spaced steps, and steps at which
            the curve turns.

    Raises:
        SetpointError: there would be too many rows.
    """
    run = _Run(job, steps)
    if every and run.steps // every > ROWS:
        raise SetpointError(
            f"--every {every} of {run.steps} steps gives more than {ROWS:,} rows\nValid: --every "
            f"{ceil(run.steps / ROWS)} or more"
        )
    last = run.steps - 1
    count = min(run.steps, most)
    spread = {index * last // max(count - 1, 1) for index in range(count)}
    phases = [(steps_before(p.start, job.batch), p.lr_factor) for p in job.data.all_phases]
    turns = {*_turns(job, run), *(turn for start, _ in phases for turn in (start - 1, start))}
    spread |= {step for step in turns if 0 <= step <= last}
    factor = job.schedule.build()
    merge = None if job.adapter is None else job.adapter.merge

    def extra_factor(step: int) -> float:
        """Factor of the data phase and of adapter merges."""
        begun = [phase_factor for start, phase_factor in phases if start <= step]
        phase_factor = begun[-1] if begun else 1.0
        return phase_factor * (1.0 if merge is None else merge.rate_factor(step))

    def points(steps: Iterable[int]) -> list[Point]:
        return [
            Point(step, place.at(run.unit), f, job.optimizer.lr * f)
            for step in steps
            for place in (run.place(step),)
            for f in (factor(place) * extra_factor(step),)
        ]

    drawn = points(sorted(spread))
    highest = max(drawn, key=lambda point: point.lr)
    if every:
        drawn = points([*range(0, last, every), last])
    return Curve(run.length, run.unit, drawn, highest, [*_notes(job), *run.notes()])


class _Run:
    """A run with an assumed number of steps of equal length.

    Arguments:
        steps: number of steps; None: determined by the duration.
    """

    def __init__(self, job: Job, steps: int | None) -> None:
        section = job.schedule
        known = job.total_steps() if steps is None else steps
        limits = [*job.duration.limits, *(section.runs_over or job.duration).limits]
        self.job, self.batch = job, job.batch
        self.unit = "steps" if known is not None else job.duration.limits[0].unit
        self.guessed = known is None
        self.steps = known if known is not None else self._guess()
        # The extent of the run in each unit; assumed for epochs and seconds.
        self.sequences = self.batch.sequences_before(self.steps)
        tokens = self.sequences * self.batch.sequence_length
        self.whole: dict[str, float] = {"steps": self.steps, "tokens": tokens}
        for length in section.lengths:
            self.whole.setdefault(length.unit, 10 * length.count)
        for limit in reversed(limits):
            if limit.unit not in ("steps", "tokens"):
                self.whole[limit.unit] = limit.count
        self.length = job.duration if self.guessed else Duration(self.steps)

    def _guess(self) -> int:
        section = self.job.schedule
        inside = [int(length.count) for length in section.lengths if length.unit == "steps"]
        run_steps = None if section.runs_over is None else section.runs_over.in_unit("steps")
        return (
            int(run_steps)
            if run_steps is not None
            else max([DRAWN, *(10 * count for count in inside)])
        )

    def place(self, step: int) -> ScheduleTime:
        """The step's time, by the sequences before it and in it."""
        before, size = self.batch.sequences_before(step), self.batch.size_at(step)
        begin, extent = self._in_units(before, step), self._in_units(size, 1)
        return ScheduleTime(begin, {**extent, "seconds": 0.0})

    def _in_units(self, sequences: int, steps: int) -> dict[str, float]:
        exact = {"steps": steps, "tokens": sequences * self.batch.sequence_length}
        return {
            unit: exact[unit] if unit in exact else whole * sequences / self.sequences
            for unit, whole in self.whole.items()
        }

    def step_at(self, distance: float, unit: str) -> float:
        """The step, with a fraction, that begins at a distance in a unit."""
        if unit == "steps":
            return distance
        if unit == "tokens":
            return self.batch.steps_for(distance / self.batch.sequence_length)
        # None where a horizon is shorter than any float can be divided.
        share = distance / self.whole[unit] if self.whole[unit] else inf
        return self.batch.steps_for(share * self.sequences) if isfinite(share) else inf

    def notes(self) -> Iterator[str]:
        section = self.job.schedule
        used = {length.unit for length in section.lengths if length} - {"%"}
        used |= {limit.unit for limit in section.runs_over.limits} if section.runs_over else set()
        if used <= {"steps", "tokens"} and not self.guessed:
            return
        if self.guessed and used <= {self.unit}:
            yield (
                f"a duration of {self.job.duration} does not set the number of steps; the curve "
                "spans it, and --steps N assumes N steps"
            )
            return
        used |= {self.unit}
        units = " and ".join(sorted(used - {"steps", "tokens"}))
        yield (
            f"the number of {units} per step is unknown before the run; the curve assumes "
            f"{plural(self.steps, 'step')}, --steps N sets another number"
        )


def _turns(job: Job, run: _Run) -> list[int]:
    """Steps at which the curve turns."""
    section = job.schedule
    unit, total, end = "steps", run.steps, run.place(run.steps)
    if section.runs_over is not None:
        unit, total = nearest(section.runs_over, end)
    turns = [measure(section.rises_over, unit, total, end)]
    if isinstance(section, Piecewise):
        turns += phase_ends(section, unit, total, end)
    steps = [run.step_at(turn, unit) for turn in turns]
    return [step for turn in steps if isfinite(turn) for step in (ceil(turn) - 1, ceil(turn))]


def _notes(job: Job) -> list[str]:
    """Effects that a curve over the steps cannot show."""
    section = job.schedule
    if isinstance(section, Plateau):
        floor = f", down to {section.floor:g} of the peak" if section.floor else ""
        return [
            f"drawn for a run whose {section.monitor} improves at every evaluation; after more "
            f"than {section.patience} in a row without improvement the rate is multiplied by "
            f"{section.factor:g}{floor}"
        ]
    if section.moved_by == "tokens":
        length = job.batch.sequence_length
        return [
            f"by tokens: drawn for full rows of {length:,} tokens; shorter ones advance it less"
        ]
    if section.moved_by == "epoch":
        first = job.optimizer.lr * job.schedule.build()(_Run(job, None).place(0))
        return [
            f"by epoch: in the run the rate is constant within an epoch, {first:.4g} in the "
            "first one; drawn as if an epoch had one step"
        ]
    return []
