"""Pipeline schedules without torch: the order of actions on each rank, and their times.

The orders equal those of `torch.distributed.pipelining`, which a test checks action by action. The
simulation starts each action as soon as its rank is free and its inputs have arrived; the idle time
of a rank is its bubble.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from operator import ge
from typing import NamedTuple

from setpoint.parallel.pipelining import SCHEDULES, ranks_of_stages

FORWARD, BACKWARD, INPUT, WEIGHT = "F", "B", "I", "W"
"""Kinds of actions: forward, backward, and its parts, for gradients of inputs and of weights."""

_DIRECT = 6
"""Micro-batches per stage up to which all are simulated; beyond, the steady state is repeated."""


class Action(NamedTuple):
    """One pass of a micro-batch through a stage."""

    kind: str
    stage: int
    microbatch: int


class StageTimes(NamedTuple):
    """Seconds of a stage per micro-batch.

    Arguments:
        weight: part of `backward` spent on gradients of weights, for schedules that split it.
    """

    forward: float
    backward: float
    weight: float = 0.0

    def of(self, kind: str) -> float:
        """Seconds of an action, by its kind."""
        if kind == FORWARD:
            return self.forward
        if kind == BACKWARD:
            return self.backward
        return self.weight if kind == WEIGHT else self.backward - self.weight


class TimedAction(NamedTuple):
    """Action with start and end, in seconds from the start of the step."""

    action: Action
    start: float
    end: float


class Simulation(NamedTuple):
    """Simulated step on all ranks of a pipeline.

    Arguments:
        ranks: events of each rank, in order.
        seconds: from the first action to the end of the last one.
    """

    ranks: list[list[TimedAction]]
    seconds: float

    def busy(self, rank: int) -> float:
        """Seconds during which a rank computes."""
        return sum(event.end - event.start for event in self.ranks[rank])

    def critical(self) -> list[tuple[int, TimedAction]]:
        """The critical path: ranks and events, first to last.

        Each event follows the one for whose end it waited; a result from another rank arrives after
        that end.
        """
        events = [(rank, event) for rank, row in enumerate(self.ranks) for event in row]
        if not events:
            return []
        ends = {event.action: (rank, event) for rank, event in events}
        before: dict[Action, tuple[int, TimedAction]] = {}
        for rank, row in enumerate(self.ranks):
            for first, second in pairwise(row):
                before[second.action] = (rank, first)
        stages = 1 + max(event.action.stage for _, event in events)
        chain = [max(events, key=lambda item: item[1].end)]
        while True:
            rank, event = chain[-1]
            causes = [
                ends[need] if need in ends else ends[need._replace(kind=INPUT)]
                for need in _needs(event.action, stages)
            ]
            if event.action in before:
                causes.append(before[event.action])
            if not causes:
                return chain[::-1]
            chain.append(max(causes, key=lambda item: (item[1].end, item[0] == rank)))


def _gpipe(ranks: int, stages_per_rank: int, count: int, rank: int) -> list[Action]:
    return _breadth_first(ranks, stages_per_rank, count, rank, range(count))


def _looped_bfs(ranks: int, stages_per_rank: int, count: int, rank: int) -> list[Action]:
    return _breadth_first(ranks, stages_per_rank, count, rank, range(count - 1, -1, -1))


def _breadth_first(
    ranks: int, stages_per_rank: int, count: int, rank: int, backward: Sequence[int]
) -> list[Action]:
    """All micro-batches stage by stage, then `backward` in reverse order of stages."""
    stages = range(rank, ranks * stages_per_rank, ranks)
    forward = [Action(FORWARD, stage, number) for stage in stages for number in range(count)]
    return forward + [Action(BACKWARD, stage, n) for stage in reversed(stages) for n in backward]


def _one_by_one(ranks: int, stages_per_rank: int, count: int, rank: int) -> list[Action]:
    ahead = min(count, ranks - 1 - rank)
    actions = [Action(FORWARD, rank, number) for number in range(ahead)]
    for number in range(count):
        if ahead + number < count:
            actions.append(Action(FORWARD, rank, ahead + number))
        actions.append(Action(BACKWARD, rank, number))
    return actions


def _interleaved(
    ranks: int, stages_per_rank: int, count: int, rank: int, splits: bool = False
) -> list[Action]:
    """Rounds of about as many micro-batches as ranks, which pass through all stages of a rank."""
    size = count // max(1, count // ranks)
    total = stages_per_rank * count
    ahead = min(total, (stages_per_rank - 1) * size + (1 if splits else 2) * (ranks - 1 - rank))

    def place(number: int, backward: bool) -> tuple[int, int]:
        local = number // size % stages_per_rank
        stage = (stages_per_rank - 1 - local if backward else local) * ranks + rank
        return stage, number // (size * stages_per_rank) * size + number % size

    actions = [Action(FORWARD, *place(number, False)) for number in range(ahead)]
    weights = 0
    for number in range(total):
        if ahead + number < total:
            actions.append(Action(FORWARD, *place(ahead + number, False)))
        actions.append(Action(INPUT if splits else BACKWARD, *place(number, True)))
        if splits and number >= rank:
            actions.append(Action(WEIGHT, *place(weights, True)))
            weights += 1
    if splits:
        actions += [Action(WEIGHT, *place(number, True)) for number in range(weights, total)]
    return actions


def _interleaved_split(ranks: int, stages_per_rank: int, count: int, rank: int) -> list[Action]:
    return _interleaved(ranks, stages_per_rank, count, rank, splits=True)


class _Counting:
    """Actions of one rank; micro-batches are numbered by stage and kind as they are added."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self.counts: dict[tuple[str, int], int] = {}
        self.pending: list[tuple[int, int]] = []
        """Stages and micro-batches whose weight gradients are pending."""

    def add(self, kind: str, stage: int) -> None:
        key = (INPUT if kind == BACKWARD else kind, stage)
        number = self.counts.get(key, 0)
        self.counts[key] = number + 1
        self.actions.append(Action(kind, stage, number))
        if kind == INPUT:
            self.pending.append((stage, number))

    def add_weight(self) -> None:
        if self.pending:
            self.actions.append(Action(WEIGHT, *self.pending.pop(0)))


def _zero_bubble_v(ranks: int, stages_per_rank: int, count: int, rank: int) -> list[Action]:
    """ZB-V (Qi et al., 2024), laid out for a full pipeline, without missing micro-batches."""
    full = max(2 * ranks - 1, count)
    down, up = rank, 2 * ranks - 1 - rank
    row = _Counting()

    def backward(stage: int) -> None:
        row.add(INPUT, stage)
        row.pending.clear()
        row.add(WEIGHT, stage)

    for _ in range(2 * (ranks - rank) - 1):
        row.add(FORWARD, down)
    for _ in range(rank):
        row.add(FORWARD, up)
        row.add(FORWARD, down)
    for _ in range(ranks - rank):
        row.add(FORWARD, up)
        backward(up)
    while row.counts[FORWARD, up] < row.counts[FORWARD, down] or row.counts[FORWARD, down] < full:
        if row.counts[FORWARD, down] < full:
            row.add(FORWARD, down)
        backward(down)
        row.add(FORWARD, up)
        backward(up)
    for _ in range(rank):
        row.add(INPUT, down)
        row.add(INPUT, up)
    for _ in range(ranks - rank):
        row.add(INPUT, down)
        row.add(WEIGHT, down)
    for stage in (up, down):
        while row.counts.get((WEIGHT, stage), 0) < row.counts[INPUT, stage]:
            row.add(WEIGHT, stage)
    return [action for action in row.actions if action.microbatch < count]


def _dual_pipe_v(ranks: int, stages_per_rank: int, count: int, rank: int) -> list[Action]:
    """DualPipeV (DeepSeek-AI, 2024): forward and backward passes of different stages alternate."""
    down, up = rank, 2 * ranks - 1 - rank
    after = ranks - rank - 1
    row = _Counting()
    for _ in range(2 * after):
        row.add(FORWARD, down)
    for _ in range(rank + 1):
        row.add(FORWARD, down)
        row.add(FORWARD, up)
    for _ in range(after):
        row.add(INPUT, up)
        row.add_weight()
        row.add(FORWARD, up)
    for _ in range(count - 2 * ranks + rank + 1):
        row.add(FORWARD, down)
        row.add(BACKWARD, up)
        row.add(FORWARD, up)
        row.add(BACKWARD, down)
    for _ in range(after):
        row.add(BACKWARD, up)
        row.add(FORWARD, up)
        row.add(BACKWARD, down)
    kind, half = BACKWARD, (rank + 1) // 2
    for number in range(rank + 1):
        if number == half and rank % 2 == 1:
            kind = INPUT
        row.add(kind, up)
        if number == half and rank % 2 == 0:
            kind = INPUT
        row.add(kind, down)
    for _ in range(after):
        row.add_weight()
        row.add(kind, down)
    for _ in range(rank + 1):
        row.add_weight()
    return row.actions


ORDERS: dict[str, Callable[[int, int, int, int], list[Action]]] = {
    "gpipe": _gpipe,
    "1f1b": _one_by_one,
    "looped_bfs": _looped_bfs,
    "interleaved_1f1b": _interleaved,
    "interleaved_zero_bubble": _interleaved_split,
    "zbv_zero_bubble": _zero_bubble_v,
    "dual_pipe_v": _dual_pipe_v,
}
"""Actions of a rank by schedule, from ranks, stages per rank, micro-batches and the rank."""


@lru_cache(maxsize=256)
def order_of(schedule: str, ranks: int, stages_per_rank: int, count: int) -> list[list[Action]]:
    """Actions of each pipeline rank in a step, in order.

    Arguments:
        schedule: a value of `parallel.pipelining.schedule`.
        count: number of micro-batches, which the schedule must support.
    """
    return [ORDERS[schedule](ranks, stages_per_rank, count, rank) for rank in range(ranks)]


class InFlight(NamedTuple):
    """Micro-batches in flight in each stage of a rank at one moment.

    Arguments:
        active: number between the forward pass and the gradients of weights, which need its
            activations.
        split: number of those that already have gradients of inputs.
    """

    active: tuple[int, ...]
    split: tuple[int, ...]


@lru_cache(maxsize=4096)
def in_flight(
    schedule: str, ranks: int, stages_per_rank: int, count: int, rank: int
) -> tuple[InFlight, ...]:
    """Micro-batches in flight at all moments of a step that may be a rank's peak."""
    active, split = [0] * stages_per_rank, [0] * stages_per_rank
    moments: dict[InFlight, None] = {}
    for kind, stage, _ in ORDERS[schedule](ranks, stages_per_rank, count, rank):
        number = stage // ranks
        if kind == FORWARD:
            active[number] += 1
            continue
        split[number] += kind == INPUT
        moments[InFlight(tuple(active), tuple(split))] = None
        if kind != INPUT:
            active[number] -= 1
            split[number] -= kind == WEIGHT
    return tuple(
        moment
        for moment in moments
        if not any(
            other != moment
            and all(map(ge, (*other.active, *other.split), (*moment.active, *moment.split)))
            for other in moments
        )
    )


def simulate(
    schedule: str, times: Sequence[StageTimes], ranks: int, count: int, send: float = 0.0
) -> Simulation:
    """Simulate the passes of a step.

    Arguments:
        times: times of all stages, in model order.
        count: number of micro-batches.
        send: seconds to send a result to the next rank.

    Raises:
        AssertionError: a deadlock, which no schedule here has.
    """
    stages = len(times)
    places = ranks_of_stages(ranks, stages, SCHEDULES[schedule].is_v)
    orders = order_of(schedule, ranks, stages // ranks, count)
    # What must have ended: by stage and micro-batch. A gradient is there when its input part is.
    ends: dict[Action, float] = {}
    rows: list[list[TimedAction]] = [[] for _ in range(ranks)]
    free, next_up = [0.0] * ranks, [0] * ranks
    waiting: dict[Action, int] = {}
    ready = list(range(ranks))
    while ready:
        rank = ready.pop()
        order, position = orders[rank], next_up[rank]
        while position < len(order):
            action = order[position]
            start = free[rank]
            missing = None
            for need in _needs(action, stages):
                event = ends.get(need)
                if event is None and need.kind == BACKWARD:
                    event = ends.get(need._replace(kind=INPUT))
                if event is None:
                    missing = need
                    break
                start = max(start, event + (send if places[need.stage] != rank else 0.0))
            if missing is not None:
                waiting[missing] = rank
                break
            end = start + times[action.stage].of(action.kind)
            ends[action] = free[rank] = end
            rows[rank].append(TimedAction(action, start, end))
            position += 1
            done = action._replace(kind=BACKWARD) if action.kind == INPUT else action
            if done in waiting:
                ready.append(waiting.pop(done))
        next_up[rank] = position
    assert all(next_up[rank] == len(orders[rank]) for rank in range(ranks)), schedule
    return Simulation(rows, max(free))


def _needs(action: Action, stages: int) -> list[Action]:
    """Actions that must end before another; a backward pass needs only the next input part."""
    kind, stage, number = action
    if kind == FORWARD:
        needs = [] if stage == 0 else [Action(FORWARD, stage - 1, number)]
    elif kind == WEIGHT:
        needs = [Action(INPUT, stage, number)]
    elif stage == stages - 1:
        needs = [Action(FORWARD, stage, number)]
    else:
        needs = [Action(FORWARD, stage, number), Action(BACKWARD, stage + 1, number)]
    return needs


def pipeline_seconds(
    schedule: str, times: Sequence[StageTimes], ranks: int, count: int, send: float = 0.0
) -> float:
    """Seconds of the passes of a step, computed in time independent of the number of micro-batches.

    For many micro-batches, two shorter steps are simulated; every further round of one micro-batch
    per rank takes the same time.
    """
    stages = len(times)
    if count <= _DIRECT * stages or (count - _DIRECT * stages // 2) % ranks:
        return simulate(schedule, times, ranks, count, send).seconds
    few = _DIRECT * stages // 2
    first = simulate(schedule, times, ranks, few, send).seconds
    second = simulate(schedule, times, ranks, few + ranks, send).seconds
    return second + (count - few - ranks) // ranks * (second - first)
