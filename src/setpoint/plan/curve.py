"""The learning rate of a job over its updates, before there is a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from setpoint.optim.schedule.config import Piecewise, Plateau

if TYPE_CHECKING:
    from setpoint.train.config import Job

FEW = 100  # updates that are drawn where nothing says how many there will be, at least


class Point(NamedTuple):
    """One update.

    Arguments:
        step: its number, the first is 0.
        factor: on the peak learning rate.
        lr: the learning rate.
    """

    step: int
    factor: float
    lr: float


class Curve(NamedTuple):
    """The learning rate of a job.

    Arguments:
        updates: how many are drawn.
        points: some of them, the first and the last among them.
        highest: the first update with the highest learning rate.
        notes: what the drawing leaves out, in words.
    """

    updates: int
    points: Sequence[Point]
    highest: Point
    notes: Sequence[str]


def draw_curve(job: Job, updates: int | None = None, every: int = 0, most: int = 1000) -> Curve:
    """Compute the learning rate of a job's updates.

    Arguments:
        job: resolved.
        updates: how many; None: those of the run, as far as its duration tells.
        every: take each update whose number is a multiple of this; 0: so many, evenly spread, and
            those where the curve turns.
        most: how many are spread.

    Returns:
        the points, and what they do not show.
    """
    notes = list(_notes(job))
    if updates is None:
        updates = job.updates()
    if updates is None:
        updates = _guess(job)
        notes.append(
            f"a duration of {job.duration} does not say how many updates there will be; these are "
            f"{updates}, --steps N takes others"
        )
    last = updates - 1
    count = min(updates, most)
    spread = {round(index * last / max(count - 1, 1)) for index in range(count)}
    spread |= {step for step in _corners(job) if 0 <= step <= last}
    factor = job.schedule.build()

    def points(steps: Iterable[int]) -> list[Point]:
        return [Point(step, f := factor(step), job.optimizer.lr * f) for step in steps]

    drawn = points(sorted(spread))
    highest = max(drawn, key=lambda point: point.lr)
    if every:
        drawn = points([*range(0, last, every), last])
    return Curve(updates, drawn, highest, notes)


def _corners(job: Job) -> list[int]:
    """The updates around which the curve turns."""
    section = job.schedule
    turns: list[float] = [section.warmup]
    if isinstance(section, Piecewise):
        turns += [end for _, end in section.spans()]
    return [step for turn in turns for step in (math.ceil(turn) - 1, math.ceil(turn))]


def _guess(job: Job) -> int:
    section = job.schedule
    if section.end:
        return math.ceil(section.end)
    return 10 * max(FEW, section.warmup)


def _notes(job: Job) -> list[str]:
    """What a curve over the updates cannot show."""
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
        first = job.optimizer.lr * job.schedule.build()(0)
        return [
            f"by epoch: in the run the rate stays at that of the first update of each epoch, all "
            f"through the first epoch at {first:.4g}; drawn as if an epoch had one update"
        ]
    return []
