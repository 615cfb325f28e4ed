"""Schedules without torch: the order of torch's own, and bubbles of the literature."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from setpoint.parallel.pipelining import SCHEDULES, Pipelining
from setpoint.plan.schedules import (
    Action,
    InFlight,
    StageTimes,
    in_flight,
    order_of,
    pipeline_seconds,
    simulate,
)

NAMES = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}
SIZES = [(2, 4), (3, 6), (4, 8), (4, 12), (8, 32)]


def torch_order(schedule: str, ranks: int, each: int, count: int) -> list[list[Action]]:
    """What torch's schedule computes, without a process group."""
    from torch.distributed.pipelining import schedules

    kind: Any = schedules.get_schedule_class(SCHEDULES[schedule].torch)
    rounds = max(1, count // ranks)
    asked: Any = SimpleNamespace(
        _num_stages=ranks * each, num_stages=ranks * each, _n_microbatches=count,
        pp_group_size=ranks, n_local_stages=each, _stages=[None] * each,
        number_of_rounds=rounds, microbatches_per_round=count // rounds,
    )  # fmt: skip
    if each == 1:
        found = kind._get_pipeline_order(asked)
    else:
        found = [kind._calculate_single_rank_operations(asked, rank) for rank in range(ranks)]
    rows: list[list[Action]] = []
    # `Schedule1F1B` draws the forward passes of the last rank from 1 on, and runs them from 0 on.
    shift = int(schedule == "1f1b")
    for rank in range(ranks):
        row: list[Action] = []
        for action in found[rank]:
            for part in () if action is None else action.sub_actions or (action,):
                if part.computation_type.name in NAMES:
                    name = NAMES[part.computation_type.name]
                    late = shift if rank == ranks - 1 and name == "F" else 0
                    row.append(Action(name, part.stage_index, part.microbatch_index - late))
        rows.append(row)
    return rows


@pytest.mark.parametrize("schedule", list(SCHEDULES))
@pytest.mark.parametrize(("ranks", "count"), SIZES)
def test_the_order_is_that_of_torch(schedule: str, ranks: int, count: int) -> None:
    known = SCHEDULES[schedule]
    for each in (known.stages, 3) if known.is_looped else (known.stages,):
        section = Pipelining(schedule=schedule, stages_per_rank=each)  # pyright: ignore[reportArgumentType]
        assert section.fits(ranks, count)
        assert order_of(schedule, ranks, each, count) == torch_order(schedule, ranks, each, count)


@pytest.mark.parametrize("schedule", list(SCHEDULES))
@pytest.mark.parametrize("ranks", [2, 3, 4, pytest.param(8, marks=pytest.mark.slow)])
def test_no_moment_of_torch_has_more_micro_batches_in_flight(schedule: str, ranks: int) -> None:
    known = SCHEDULES[schedule]
    for each in (2, 4) if known.is_looped else (known.stages,):
        section = Pipelining(schedule=schedule, stages_per_rank=each)  # pyright: ignore[reportArgumentType]
        for count in (n for n in range(1, 4 * ranks) if section.fits(ranks, n)):
            rows = torch_order(schedule, ranks, each, count)
            for rank, row in enumerate(rows):
                peaks = in_flight(schedule, ranks, each, count, rank)
                moments = moments_of(row, range(rank, ranks * each, ranks), known.is_v, ranks)
                assert {*peaks} <= moments
                for moment in moments:
                    assert any(covers(peak, moment) for peak in peaks)


def moments_of(row: list[Action], stages: range, is_v: bool, ranks: int) -> set[InFlight]:
    """The micro-batches in flight while each action runs, counted from sets of actions."""
    places = [stages[0], 2 * ranks - 1 - stages[0]] if is_v else [*stages]
    moments: set[InFlight] = set()
    for now in range(1, len(row) + 1):
        begun, ended = row[:now], row[: now - 1]
        with_inputs = [each for each in begun if each.kind == "I"]
        active, split = [], []
        for stage in places:
            forward = {n for kind, at, n in begun if at == stage and kind == "F"}
            done = {n for kind, at, n in ended if at == stage and kind in "BW"}
            active.append(len(forward - done))
            split.append(len({n for _, at, n in with_inputs if at == stage} - done))
        moments.add(InFlight(tuple(active), tuple(split)))
    return moments


def covers(peak: InFlight, moment: InFlight) -> bool:
    return all(most >= count for most, count in zip(sum(peak, ()), sum(moment, ()), strict=True))


@pytest.mark.parametrize("schedule", list(SCHEDULES))
@pytest.mark.parametrize(("ranks", "count"), SIZES)
def test_bubbles_are_those_of_the_literature(schedule: str, ranks: int, count: int) -> None:
    """As docs/parallel/pipeline.md has them; a stage has 1 / v of the layers of a rank."""
    each = SCHEDULES[schedule].stages
    forward, backward, weight = 1.0, 2.0, 1.0
    times = [StageTimes(forward, backward, weight)] * (ranks * each)
    found = simulate(schedule, times, ranks, count)
    bubble = found.seconds - count * each * (forward + backward)
    bound = {
        "gpipe": (ranks - 1) * (forward + backward),
        "1f1b": (ranks - 1) * (forward + backward),
        "looped_bfs": (ranks - 1) * (forward + backward),
        "interleaved_1f1b": (ranks - 1) * (forward + backward),
        "interleaved_zero_bubble": (ranks - 1) * (forward + backward - 2 * weight),
        "zbv_zero_bubble": 0.0,
        "dual_pipe_v": (ranks - 1) * forward,
    }[schedule]
    if schedule == "zbv_zero_bubble":
        # No rank waits between its passes: what is left is the way of the first to the last rank.
        assert bubble == pytest.approx((ranks - 1) * forward)
        for rank, row in enumerate(found.ranks):
            assert found.busy(rank) == pytest.approx(row[-1].end - row[0].start)
    else:
        assert bubble == pytest.approx(bound)


@pytest.mark.parametrize("schedule", list(SCHEDULES))
def test_many_microbatches_take_as_long_as_when_all_are_simulated(schedule: str) -> None:
    ranks, each = 4, SCHEDULES[schedule].stages
    # Stages of different sizes: the last has the logits.
    times = [StageTimes(1.0, 2.0, 0.8)] * (ranks * each - 1) + [StageTimes(1.3, 2.5, 1.0)]
    for count in (64, 128):
        short = pipeline_seconds(schedule, times, ranks, count, send=0.1)
        assert short == pytest.approx(simulate(schedule, times, ranks, count, 0.1).seconds)


def test_the_critical_path_has_no_gaps_but_those_of_the_network() -> None:
    send = 0.25
    found = simulate("1f1b", [StageTimes(1.0, 2.0)] * 4, 4, 8, send)
    chain = found.critical()
    assert chain[0][1].start == 0
    assert chain[-1][1].end == found.seconds
    for (rank, event), (after, following) in pairwise(chain):
        assert following.start - event.end == pytest.approx(send if rank != after else 0)
