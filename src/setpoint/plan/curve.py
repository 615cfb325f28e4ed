"""The learning rate of a job over its run, before there is one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import ceil, isfinite
from typing import TYPE_CHECKING, NamedTuple

from setpoint.config import SetpointError
from setpoint.optim.schedule.config import Piecewise, Plateau
from setpoint.optim.schedule.curves import ScheduleTime, measure, nearest, spans
from setpoint.train.batch import steps_before
from setpoint.units import Duration

if TYPE_CHECKING:
    from setpoint.train.config import Job

DRAWN = 1000  # steps that are drawn where nothing says how many there will be, at least
ROWS = 100_000  # more than anybody reads


class Point(NamedTuple):
    """One step.

    Attributes:
        step: its number, the first is 0.
        at: where it begins, in the unit of the curve.
        factor: on the peak learning rate.
        lr: the learning rate.
    """

    step: int
    at: float
    factor: float
    lr: float


class Curve(NamedTuple):
    """The learning rate of a job.

    Attributes:
        length: how long it is drawn.
        unit: of places on it: `"steps"`, or that of the duration where steps are not known.
        points: some of them, the first and the last among them.
        highest: the first step with the highest learning rate.
        notes: what the drawing leaves out, in words.
    """

    length: Duration
    unit: str
    points: Sequence[Point]
    highest: Point
    notes: Sequence[str]


def draw_curve(job: Job, steps: int | None = None, every: int = 0, most: int = 1000) -> Curve:
    """Compute the learning rate of a job's steps.

    Where the number of steps is known only from the data, or only from the clock, the curve is
    drawn over the duration in its own unit, as if it had as many steps as are drawn.

    Arguments:
        steps: how many; None: those of the run, as far as its duration tells.
        every: take each step whose number is a multiple of this; 0: so many, evenly spread, and
            those where the curve turns.

    Raises:
        SetpointError: for more rows than anybody reads.
    """
    run = _Run(job, steps)
    if every and run.steps // every > ROWS:
        raise SetpointError(
            f"--every {every} of {run.steps} steps are more than {ROWS:,} rows; at least "
            f"--every {ceil(run.steps / ROWS)}"
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
        """The factor of the phase of the data and of merges."""
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
    """A run as it may be: so many steps, all of which are as long as each other.

    Arguments:
        steps: how many; None: as far as the duration tells.
    """

    def __init__(self, job: Job, steps: int | None) -> None:
        section, tokens = job.schedule, job.batch.global_size * job.batch.sequence_length
        known = job.total_steps() if steps is None else steps
        limits = [*job.duration.limits, *(section.runs_over or job.duration).limits]
        self.job = job
        self.unit = "steps" if known is not None else job.duration.limits[0].unit
        self.guessed = known is None
        self.steps = known if known is not None else self._guess()
        # The extent of the run, and of a step, in each unit; only as if for epochs and seconds.
        self.whole: dict[str, float] = {"steps": self.steps, "tokens": self.steps * tokens}
        for length in section.lengths:
            self.whole.setdefault(length.unit, 10 * length.count)
        for limit in reversed(limits):
            if limit.unit not in ("steps", "tokens"):
                self.whole[limit.unit] = limit.count
        exact = {"steps": 1, "tokens": tokens}
        self.extent: dict[str, float] = {
            unit: exact[unit] if unit in exact else whole / self.steps
            for unit, whole in self.whole.items()
        }
        self.length = job.duration if self.guessed else Duration(self.steps)

    def _guess(self) -> int:
        section = self.job.schedule
        inside = [int(length.count) for length in section.lengths if length.unit == "steps"]
        of = None if section.runs_over is None else section.runs_over.in_unit("steps")
        return int(of) if of is not None else max([DRAWN, *(10 * count for count in inside)])

    def place(self, step: int) -> ScheduleTime:
        begin = {
            unit: step * self.extent[unit]
            if unit in ("steps", "tokens")
            else whole * step / self.steps
            for unit, whole in self.whole.items()
        }
        return ScheduleTime(begin, {**self.extent, "seconds": 0.0})

    def notes(self) -> Iterator[str]:
        section = self.job.schedule
        used = {length.unit for length in section.lengths if length} - {"%"}
        used |= {limit.unit for limit in section.runs_over.limits} if section.runs_over else set()
        if used <= {"steps", "tokens"} and not self.guessed:
            return
        if self.guessed and used <= {self.unit}:
            yield (
                f"a duration of {self.job.duration} does not say how many steps there will be; "
                f"drawn over it, --steps N takes N steps"
            )
            return
        used |= {self.unit}
        others = " and ".join(sorted(used - {"steps", "tokens"}))
        yield (
            f"how many {others} a step has is not known before the run; drawn as if the run had "
            f"{self.steps:,} steps, --steps N takes others"
        )


def _turns(job: Job, run: _Run) -> list[int]:
    """The steps around which the curve turns."""
    section = job.schedule
    unit, whole, end = "steps", run.steps, run.place(run.steps)
    if section.runs_over is not None:
        unit, whole = nearest(section.runs_over, end)
    turns = [measure(section.rises_over, unit, whole, end)]
    if isinstance(section, Piecewise):
        lengths = [
            None if phase.length is None else measure(phase.length, unit, whole, end)
            for phase in section.phases
        ]
        turns += [stop for _, stop in spans(lengths, whole, unit)]
    extent = run.extent[unit]  # none where a horizon is shorter than any float can be divided
    steps = [turn / extent for turn in turns] if extent else []
    return [step for turn in steps if isfinite(turn) for step in (ceil(turn) - 1, ceil(turn))]


def _notes(job: Job) -> list[str]:
    """Notes on effects that a curve over the steps cannot show."""
    section = job.schedule
    if isinstance(section, Plateau):
        floor = f", down to {section.floor:g} of the peak" if section.floor else ""
        return [
            f"drawn for a run whose {section.monitor} gets better at each evaluation; after more "
            f"than {section.patience} in a row without a gain the rate is multiplied by "
            f"{section.factor:g}{floor}"
        ]
    if section.moved_by == "tokens":
        tokens = job.batch.global_size * job.batch.sequence_length
        return [f"by tokens: drawn for full batches of {tokens:,} tokens; fewer move it less"]
    if section.moved_by == "epoch":
        first = job.optimizer.lr * job.schedule.build()(_Run(job, None).place(0))
        return [
            f"by epoch: in the run the rate stays at that of the first step of each epoch, all "
            f"through the first epoch at {first:.4g}; drawn as if an epoch had one step"
        ]
    return []
