"""What the sections of schedules derive and refuse."""

from __future__ import annotations

from typing import Any

import pytest

from setpoint.config import Config, ConfigError, resolve
from setpoint.config.compose import compose
from setpoint.optim.config import (
    Constant,
    Cosine,
    InverseSqrt,
    Linear,
    NoSchedule,
    Phase,
    Piecewise,
    Plateau,
    Polynomial,
    Rex,
    ScheduleConfig,
    Wsd,
)
from setpoint.train.config import Job

from ...snapshots import compare

PIECEWISE = "schedule.type=piecewise"


def message(*flags: str) -> str:
    with pytest.raises(ConfigError) as caught:
        compose(Job, flags=flags).resolve()
    return str(caught.value)


def test_what_is_derived() -> None:
    wsd = resolve(Wsd(horizon_steps=300))
    assert (wsd.warmup_steps, wsd.decay_steps) == (15, 30)
    assert resolve(Wsd(horizon_steps=5)).decay_steps == 1
    assert resolve(InverseSqrt(warmup_steps=70)).timescale == 70
    assert resolve(InverseSqrt(warmup_steps=0)).timescale == 10_000


def test_where_curves_end() -> None:
    for cls in (Cosine, Linear, Polynomial, Rex, Wsd):
        assert resolve(cls(horizon_steps=300)).end == 300
    for section in (NoSchedule(), Constant(), InverseSqrt(), Plateau()):
        assert resolve(section).end is None
    phases = (Phase(steps=3, target=1.0), Phase(share=0.25, target=0.5))
    assert resolve(Piecewise(phases=phases, horizon_steps=10)).end == 5.5


def test_what_is_asked_of_every_schedule() -> None:
    phases = (Phase(steps=3, target=1.0), Phase(share=0.25, target=0.5))
    sections: list[tuple[ScheduleConfig, tuple[int | None, int, str]]] = [
        (NoSchedule(), (None, 0, "step")),
        (Constant(warmup_steps=7, by="tokens"), (None, 7, "tokens")),
        (Cosine(horizon_steps=300, by="epoch"), (300, 15, "epoch")),
        (InverseSqrt(), (None, 1000, "step")),
        (Piecewise(phases=phases, horizon_steps=10, by="tokens"), (10, 0, "tokens")),
        (Piecewise(phases=phases[:1]), (None, 0, "step")),
        (Plateau(warmup_steps=4), (None, 4, "step")),
    ]
    for section, wanted in sections:
        found = resolve(section)
        assert (found.horizon, found.warmup, found.moved_by) == wanted


@pytest.mark.parametrize("duration", ["2 epochs", "1 h"])
@pytest.mark.parametrize("tag", ["none", "constant", "inverse_sqrt", "plateau"])
def test_no_end_is_asked_of_those_without_one(tag: str, duration: str) -> None:
    job = compose(Job, flags=[f"schedule={tag}", f"duration={duration}"]).resolve()
    assert job.schedule.end is None and job.horizon() is None


@pytest.mark.parametrize("tag", ["linear", "cosine", "polynomial", "rex", "wsd"])
def test_an_end_is_asked_of_the_others(tag: str) -> None:
    said = message(f"schedule={tag}", "duration=2 epochs")
    assert "a duration of 2 epochs does not say how many updates there will be" in said
    assert "without an end: constant, inverse_sqrt, plateau or none" in said
    compose(
        Job, flags=[f"schedule={tag}", "duration=2 epochs", "schedule.horizon_steps=9"]
    ).resolve()


def test_phases_in_steps_need_no_end_and_keep_the_fingerprint_of_a_longer_run() -> None:
    phases = "schedule.phases=[{steps: 9, target: 1}]"
    job = compose(Job, flags=[PIECEWISE, phases, "duration=2 epochs"]).resolve()
    assert job.schedule.end == 9 and job.horizon() is None
    longer = compose(Job, flags=[PIECEWISE, phases, "duration=900 steps"]).resolve()
    assert longer.horizon() == 900
    assert "must be set" in message(PIECEWISE, "schedule.phases=[{target: 1}]", "duration=1 h")


def test_lengths_as_shares_of_the_run() -> None:
    tenth = "schedule.warmup_steps=${schedule.horizon_steps // 10}"
    job = compose(Job, flags=["schedule=linear", tenth, "schedule.floor=0.1"]).resolve()
    phases = "[{share: 0.1, target: 1}, {share: 0.7, target: 0.1}]"
    other = compose(Job, flags=[PIECEWISE, f"schedule.phases={phases}"]).resolve()
    # The decay ends after 0.8 of 300 updates; until then it is that of a horizon of 240.
    shorter = compose(
        Job, flags=["schedule=linear", "schedule.horizon_steps=240", "schedule.warmup_steps=30"]
    ).resolve()
    assert [job.schedule.build()(step) for step in (0, 29, 300)] == [1 / 30, 1, 0.1]
    one, two = shorter.schedule.build(), other.schedule.build()
    assert [two(s) for s in range(300)] == pytest.approx([one(s) for s in range(300)])


WRONG = {
    "a warm-up that is none": ("schedule.warmup_steps=0", "schedule.warmup_from=0.5"),
    "by, where nothing moves": ("schedule=constant", "schedule.by=tokens"),
    "a warm-up longer than the curve": ("schedule=linear", "schedule.warmup_steps=301"),
    "a decay that has no room": ("schedule=wsd", "schedule.decay_steps=290"),
    "a decay by its other name": ("schedule=wsd", "schedule.decay=1-sqrt"),
    "a hard floor of 0": ("schedule=polynomial", "schedule.hard_floor=true", "schedule.floor=0"),
    "no phases": (PIECEWISE, "schedule.phases=[]"),
    "phases that are left out": (PIECEWISE,),
    "phases that are too long": (
        PIECEWISE,
        "schedule.phases=[{steps: 200, target: 1}, {share: 0.5, target: 0}, {target: 1}]",
    ),
    "nothing left": (PIECEWISE, "schedule.phases=[{steps: 300, target: 1}, {target: 0}]"),
    "two open phases": (PIECEWISE, "schedule.phases=[{target: 1}, {target: 0}]"),
    "two lengths": (PIECEWISE, "schedule.phases=[{target: 1, steps: 3, share: 0.5}]"),
    "ratios from 0": (PIECEWISE, "schedule.phases=[{target: 1, curve: exponential}]"),
    "ratios to 0": (
        PIECEWISE,
        "schedule.phases=[{target: 1, steps: 9}, {target: 0, curve: exponential}]",
    ),
    "ratios from a phase at 0": (
        PIECEWISE,
        "schedule.phases=[{target: 0, steps: 9}, {target: 1, curve: exponential}]",
    ),
    "a curve of no length": (PIECEWISE, "schedule.phases=[{target: 1, steps: 0, curve: cosine}]"),
    "a power of a line": (PIECEWISE, "schedule.phases=[{target: 1, power: 3}]"),
    "a horizon of nothing": (
        PIECEWISE, "schedule.horizon_steps=300", "schedule.phases=[{target: 1, steps: 300}]"
    ),
    "a plateau that stays": ("schedule=plateau", "schedule.floor=1"),
    "a metric without a data set": ("schedule=plateau", "schedule.monitor=loss"),
    "not a number": (
        "optimizer.lr=nan", "schedule.floor=nan", "schedule.warmup_from=nan",
    ),
    "not finite": ("optimizer.lr=inf", "schedule=polynomial", "schedule.power=inf"),
    "targets that are no numbers": (PIECEWISE, "schedule.phases=[{target: nan}, {target: inf}]"),
    "names of other systems": ("schedule=reduce_lr_on_plateau",),
    "null": ("schedule=null",),
}  # fmt: skip


def test_what_is_refused() -> None:
    texts = [f"# {what}\n$ {' '.join(flags)}\n{message(*flags)}\n" for what, flags in WRONG.items()]
    compare("train/schedules_refused", "\n".join(texts))


@pytest.mark.parametrize(
    ("cls", "name", "value"),
    [
        (Linear, "warmup_from", 1.5),
        (Polynomial, "power", 0.0),
        (Wsd, "decay_steps", 0),
        (InverseSqrt, "timescale", 0),
        (InverseSqrt, "floor", -0.1),
        (Plateau, "factor", 1.0),
        (Plateau, "factor", 0.0),
        (Plateau, "patience", -1),
        (Plateau, "threshold", 1.0),
        (Plateau, "cooldown", -1),
        (Phase, "target", -1.0),
        (Phase, "steps", -1),
        (Phase, "share", 1.5),
        (Piecewise, "start", -1.0),
        *((cls, "floor", float("nan")) for cls in (Cosine, Linear, Rex, Wsd, Plateau)),
    ],
)
def test_ranges(cls: type[Config], name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        resolve(cls(**{name: value}))
