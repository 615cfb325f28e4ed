"""What the sections of schedules derive and refuse."""

import pytest

from setpoint.config import ConfigError, resolve
from setpoint.config.composition import compose
from setpoint.config.resolving.checks import cautions_of
from setpoint.optim.schedule import (
    Constant,
    Cosine,
    InverseSqrt,
    Linear,
    NoSchedule,
    Piecewise,
    Plateau,
    Polynomial,
    Rex,
    SchedulePhase,
    Wsd,
)
from setpoint.train.config import Job
from setpoint.units import Duration, Length

from ...support.snapshots import compare

PIECEWISE = "schedule.type=piecewise"


def message(*flags: str) -> str:
    with pytest.raises(ConfigError) as caught:
        compose(Job, flags=flags).resolve()
    return str(caught.value)


def test_what_is_derived() -> None:
    wsd = resolve(Wsd(horizon=300))
    assert (wsd.warmup, wsd.decay_length) == (Length(15), Length(30))
    assert resolve(Wsd(horizon=5)).decay_length == Length(1)
    assert resolve(InverseSqrt(warmup=70)).timescale == Length(70)
    assert resolve(InverseSqrt(warmup=0)).timescale == Length(10_000)


@pytest.mark.parametrize("tag", ["constant", "plateau", "linear", "wsd"])
def test_a_schedule_runs_over_the_duration(tag: str) -> None:
    duration = "[300, 2 epochs]"
    job = compose(Job, flags=[f"schedule={tag}", f"duration={duration}"]).resolve()
    assert job.horizon() == job.duration
    assert job.schedule.end == (None if tag in ("constant", "plateau") else job.duration)


def test_where_curves_end() -> None:
    for cls in (Cosine, Linear, Polynomial, Rex, Wsd):
        assert resolve(cls(horizon=300)).end == Duration(300)
    for section in (NoSchedule(), Constant(), InverseSqrt(), Plateau()):
        assert resolve(section).end is None
    phases = (SchedulePhase(length=3, target=1.0), SchedulePhase(length="25 %", target=0.5))
    assert resolve(Piecewise(phases=phases, horizon=10)).end == Duration(6)


def test_phases_in_steps_need_no_end_and_keep_the_fingerprint_of_a_longer_run() -> None:
    phases = "schedule.phases=[{length: 9, target: 1}]"
    job = compose(Job, flags=[PIECEWISE, phases, "duration=2 epochs"]).resolve()
    assert job.schedule.end == Duration(9) and job.horizon() == Duration("2 epochs")
    longer = compose(Job, flags=[PIECEWISE, phases, "duration=900 steps"]).resolve()
    assert longer.horizon() == Duration(900)
    assert longer.schedule == job.schedule


def test_lengths_as_shares_of_the_run() -> None:
    tenth = "schedule.warmup=${schedule.horizon // 10}"
    job = compose(Job, flags=["schedule=linear", tenth, "schedule.floor=0.1"]).resolve()
    phases = "[{length: 10%, target: 1}, {length: 70%, target: 0.1}]"
    other = compose(Job, flags=[PIECEWISE, f"schedule.phases={phases}"]).resolve()
    # The decay ends after 0.8 of 300 updates; until then it is that of a horizon of 240.
    shorter = compose(
        Job, flags=["schedule=linear", "schedule.horizon=240", "schedule.warmup=30"]
    ).resolve()
    assert [job.schedule.build()(step) for step in (0, 29, 300)] == [1 / 30, 1, 0.1]
    one, two = shorter.schedule.build(), other.schedule.build()
    assert [two(s) for s in range(300)] == pytest.approx([one(s) for s in range(300)])


def test_horizon_as_a_share_of_the_duration() -> None:
    job = compose(Job, flags=["schedule=linear", "schedule.horizon_share=0.8"]).resolve()
    given = compose(Job, flags=["schedule=linear", "schedule.horizon=240 steps"]).resolve()
    one, two = job.schedule.build(), given.schedule.build()
    assert job.schedule.end == Duration(240) and job.schedule.rises_over == Length(12)
    assert [one(step) for step in range(300)] == [two(step) for step in range(300)]
    flags = ["schedule.horizon_share=0.3", "duration=[7, 2 epochs, 10 min]"]
    assert compose(Job, flags=flags).resolve().horizon() == Duration("2", "0.6 epochs", "180 s")


# Longer than the run, as where a recipe is tried in short: the factors of steps, and the caution.
LONGER = [
    (("schedule=linear", "schedule.warmup=400"), {0: 1 / 400, 299: 0.75}, "warmup-longer-than-run"),
    (("schedule=wsd", "schedule.warmup=400"), {0: 1 / 400, 299: 0.75}, "warmup-longer-than-run"),
    (
        ("schedule=cosine", "schedule.warmup=200", "schedule.horizon=100"),
        {99: 0.5, 199: 1.0, 200: 0.1},
        "warmup-longer-than-horizon",
    ),
    (
        ("schedule=wsd", "schedule.warmup=200", "schedule.decay_length=290", "schedule.floor=0"),
        {199: 1.0, 200: 1.0, 250: 0.5, 299: 0.01},
        "decay-shortened",
    ),
    (
        (PIECEWISE, "schedule.phases=[{length: 400, target: 1}, {target: 0}]"),
        {199: 0.5, 299: 0.75},
        "phases-longer-than-horizon",
    ),
    (
        (PIECEWISE, "schedule.phases=[{length: 300, target: 1}, {target: 0}]"),
        {299: 1.0, 300: 0.0},
        "phases-longer-than-horizon",
    ),
]


@pytest.mark.parametrize(("flags", "factors", "code"), LONGER)
def test_what_is_longer_than_the_run_is_a_caution(
    flags: tuple[str, ...], factors: dict[int, float], code: str
) -> None:
    job = compose(Job, flags=list(flags)).resolve()
    schedule = job.schedule.build()
    assert {step: schedule(step) for step in factors} == pytest.approx(factors)
    assert code in [caution.code for caution in cautions_of(job)]


WRONG = {
    "a warm-up that is none": ("schedule.warmup=0", "schedule.warmup_from=0.5"),
    "a point of a warm-up that is none": ("schedule.warmup=0", "schedule.warmup_at=start"),
    "by tokens, where nothing is in steps": ("duration=2 epochs", "schedule.by=tokens"),
    "a warm-up as a ratio": ("schedule.warmup=0.05",),
    "a horizon of no use": ("schedule=constant", "schedule.horizon=9"),
    "by, where nothing moves": ("schedule=constant", "schedule.by=tokens"),
    "two horizons": ("schedule.horizon_share=0.5", "schedule.horizon=200"),
    "a share of no use": ("schedule=constant", "schedule.horizon_share=0.5"),
    "a decay by its other name": ("schedule=wsd", "schedule.decay=1-sqrt"),
    "no phases": (PIECEWISE, "schedule.phases=[]"),
    "phases that are left out": (PIECEWISE,),
    "two open phases": (PIECEWISE, "schedule.phases=[{target: 1}, {target: 0}]"),
    "a length by other names": (PIECEWISE, "schedule.phases=[{target: 1, steps: 3, share: 0.5}]"),
    "ratios from 0": (PIECEWISE, "schedule.phases=[{target: 1, curve: exponential}]"),
    "ratios to 0": (
        PIECEWISE,
        "schedule.phases=[{target: 1, length: 9}, {target: 0, curve: exponential}]",
    ),
    "ratios from a phase at 0": (
        PIECEWISE,
        "schedule.phases=[{target: 0, length: 9}, {target: 1, curve: exponential}]",
    ),
    "a curve of no length": (PIECEWISE, "schedule.phases=[{target: 1, length: 0, curve: cosine}]"),
    "a power of a line": (PIECEWISE, "schedule.phases=[{target: 1, power: 3}]"),
    "a decay of no length": ("schedule=wsd", "schedule.decay_length=0"),
    "a timescale of no length": ("schedule=inverse_sqrt", "schedule.timescale=0"),
    "a horizon of nothing": (
        PIECEWISE, "schedule.horizon=300", "schedule.phases=[{target: 1, length: 300}]"
    ),
    "a plateau that stays": ("schedule=plateau", "schedule.floor=1"),
    "a metric without a data set": ("schedule=plateau", "schedule.monitor=loss"),
    "not a number": (
        "optimizer.lr=nan", "schedule.floor=nan", "schedule.warmup_from=nan",
    ),
    "not finite": ("optimizer.lr=inf", "schedule=polynomial", "schedule.power=inf"),
    "targets that are not numbers": (PIECEWISE, "schedule.phases=[{target: nan}, {target: inf}]"),
    "names of other systems": ("schedule=reduce_lr_on_plateau",),
    "null": ("schedule=null",),
}  # fmt: skip


def test_what_is_refused() -> None:
    texts = [f"# {what}\n$ {' '.join(flags)}\n{message(*flags)}\n" for what, flags in WRONG.items()]
    compare("train/schedules_refused", "\n".join(texts))
