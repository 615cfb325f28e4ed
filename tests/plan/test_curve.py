"""The learning rate over the updates, before there is a run."""

import pytest

import setpoint.presets  # noqa: F401 - registers them
from setpoint.config.composition import compose
from setpoint.optim.schedule import Cosine
from setpoint.plan.curve import draw_curve
from setpoint.train.config import Job
from setpoint.units import Duration

from ..support.snapshots import refused


def job(*flags: str) -> Job:
    return compose(Job, flags=flags).resolve()


def test_every_update_is_that_of_the_schedule() -> None:
    given = job("schedule=wsd", "optimizer.lr=0.5")
    curve, factor = draw_curve(given), given.schedule.build()
    assert (curve.length, curve.unit) == (Duration(300), "steps") and curve.notes == []
    assert [tuple(point) for point in curve.points] == [
        (step, step, factor(step), 0.5 * factor(step)) for step in range(300)
    ]
    assert curve.highest == (14, 14, 1.0, 0.5)


@pytest.mark.parametrize(
    ("flags", "turns"),
    [
        (("schedule.warmup=777",), {776, 777}),
        (("schedule=piecewise", "schedule.phases=[{length: 777, target: 3}, {target: 1}]"), {777}),
    ],
)
def test_of_a_long_run_the_turns_are_shown(flags: tuple[str, ...], turns: set[int]) -> None:
    curve = draw_curve(job("duration=100000 steps", *flags), most=50)
    steps = [point.step for point in curve.points]
    assert steps[0] == 0 and steps[-1] == 99_999 and turns <= set(steps) and len(steps) < 60
    assert curve.highest.factor == (3.0 if "schedule=piecewise" in flags else 1.0)


def test_phases_of_the_data_have_factors_of_their_own() -> None:
    sources = (
        "data.sources=[{type: stdlib, name: a, weight: 1}, {type: random, name: b, weight: 0}]"
    )
    anneal = "data.anneal={start: 200 steps, weights: {b: 1}, lr_factor: 0.5}"
    plain = draw_curve(job("schedule=constant", "schedule.warmup=0"))
    annealed = draw_curve(job("schedule=constant", "schedule.warmup=0", sources, anneal))
    rates = {point.step: point.lr for point in annealed.points}
    assert rates[199] == plain.points[0].lr and rates[200] == rates[299] == rates[199] / 2


def test_some_updates() -> None:
    assert [p.step for p in draw_curve(job(), every=100).points] == [0, 100, 200, 299]
    assert [p.step for p in draw_curve(job(), steps=1).points] == [0]
    assert [p.step for p in draw_curve(job(), steps=2, every=5).points] == [0, 1]


def test_more_rows_than_anybody_reads_are_refused() -> None:
    with refused():
        draw_curve(job("duration=1e18"), every=1)
    assert len(draw_curve(job("duration=1e18"), most=50).points) < 60


@pytest.mark.parametrize(
    ("duration", "unit"),
    [
        ("3 epochs", "epochs"), ("30 min", "seconds"), ("2 epochs, 30 min", "epochs"),
        ("1e10 tokens", "steps"), ("300, 2 epochs", "steps"),
    ],
)  # fmt: skip
def test_a_duration_in_every_unit(duration: str, unit: str) -> None:
    given = compose(Job, "llama3-3b", flags=[f"duration={duration}"]).resolve()
    curve = draw_curve(given)
    assert isinstance(given.schedule, Cosine) and curve.unit == unit
    whole = curve.length.in_unit(unit)
    assert whole is not None
    end = (given.schedule.floor, curve.points[-1].factor)
    assert curve.highest.factor == 1 and end[1] == pytest.approx(end[0], abs=1e-4)
    # The peak is where the warm-up ends, after a twentieth.
    assert curve.highest.at == pytest.approx(whole / 20, abs=1.5 * whole / len(curve.points))


@pytest.mark.parametrize(
    ("flags", "steps", "unit"),
    [
        (("schedule=constant",), 1000, "epochs"),
        (("schedule=inverse_sqrt", "schedule.warmup=400"), 4000, "epochs"),
        (("schedule.warmup=200",), 2000, "epochs"),
    ],
)
def test_where_nobody_knows_how_many_steps_it_will_have(
    flags: tuple[str, ...], steps: int, unit: str
) -> None:
    curve = draw_curve(job("duration=2 epochs", *flags))
    assert curve.unit == unit and curve.points[-1].step == steps - 1
    assert "is unknown before the run" in curve.notes[0] or "does not set" in curve.notes[0]
    assert draw_curve(job("duration=2 epochs", *flags), steps=9).unit == "steps"


def test_what_a_drawing_does_not_show() -> None:
    (note,) = draw_curve(job("schedule=plateau", "evaluation.every=9 steps")).notes
    assert "held_out.loss improves at every evaluation; after more than 2 in a row" in note
    (note,) = draw_curve(job("schedule.by=tokens", "batch.sequence_length=128")).notes
    assert note == "by tokens: drawn for full rows of 128 tokens; shorter ones advance it less"
    (note,) = draw_curve(job("schedule.by=epoch")).notes
    assert "the rate is constant within an epoch" in note


@pytest.mark.parametrize("field", ["warmup", "horizon"])
def test_a_time_below_the_precision_of_floats_is_drawn(field: str) -> None:
    assert draw_curve(job(f"schedule.{field}=5e-324 s")).points
