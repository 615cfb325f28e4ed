"""The learning rate over the updates, before there is a run."""

from __future__ import annotations

import pytest

from setpoint.config.compose import compose
from setpoint.plan.curve import draw_curve
from setpoint.train.config import Job


def job(*flags: str) -> Job:
    return compose(Job, flags=flags).resolve()


def test_every_update_is_that_of_the_schedule() -> None:
    given = job("schedule=wsd", "optimizer.lr=0.5")
    curve, factor = draw_curve(given), given.schedule.build()
    assert curve.updates == 300 and curve.notes == []
    assert [tuple(point) for point in curve.points] == [
        (step, factor(step), 0.5 * factor(step)) for step in range(300)
    ]
    assert curve.highest == (14, 1.0, 0.5)


@pytest.mark.parametrize(
    ("flags", "turns"),
    [
        (("schedule.warmup_steps=777",), {776, 777}),
        (("schedule=piecewise", "schedule.phases=[{steps: 777, target: 3}, {target: 1}]"), {777}),
    ],
)
def test_of_a_long_run_the_turns_are_shown(flags: tuple[str, ...], turns: set[int]) -> None:
    curve = draw_curve(job("duration=100000 steps", *flags), most=50)
    steps = [point.step for point in curve.points]
    assert steps[0] == 0 and steps[-1] == 99_999 and turns <= set(steps) and len(steps) < 60
    assert curve.highest.factor == (3.0 if "schedule=piecewise" in flags else 1.0)


def test_some_updates() -> None:
    assert [p.step for p in draw_curve(job(), every=100).points] == [0, 100, 200, 299]
    assert [p.step for p in draw_curve(job(), updates=1).points] == [0]
    assert [p.step for p in draw_curve(job(), updates=2, every=5).points] == [0, 1]


@pytest.mark.parametrize(
    ("flags", "updates"),
    [
        (("schedule=constant",), 1000),
        (("schedule=inverse_sqrt", "schedule.warmup_steps=400"), 4000),
        (("schedule.horizon_steps=70",), 70),
        (("schedule=piecewise", "schedule.phases=[{steps: 7, target: 1}]"), 7),
    ],
)
def test_where_nobody_knows_how_long_it_will_be(flags: tuple[str, ...], updates: int) -> None:
    curve = draw_curve(job("duration=2 epochs", *flags))
    assert curve.updates == updates
    assert f"does not say how many updates there will be; these are {updates}," in curve.notes[0]


def test_what_a_drawing_does_not_show() -> None:
    (note,) = draw_curve(job("schedule=plateau", "evaluation.every=9 steps")).notes
    assert "held_out.loss gets better at each evaluation; after more than 2 in a row" in note
    (note,) = draw_curve(job("schedule.by=tokens", "batch.sequence_length=128")).notes
    assert note == "by tokens: drawn for full batches of 1,024 tokens; fewer move it less"
    (note,) = draw_curve(job("schedule.by=epoch")).notes
    assert "the rate stays at that of the first update of each epoch" in note
