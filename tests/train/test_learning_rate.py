"""The learning rate of runs: by step, tokens and epochs, and what evaluations lower."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from setpoint.config import resolve
from setpoint.optim.curves import ScheduleTime
from setpoint.optim.schedule import Cosine, Moving, Plateau, ScheduleConfig
from setpoint.shapes.scoring import Score
from setpoint.train.build.components import build_components
from setpoint.train.config import BatchConfig, Job
from setpoint.train.loop import Loop
from setpoint.train.position import UNITS as EVERY
from setpoint.train.position import LearningRate, Position, is_over
from setpoint.train.run import train

from .small import assert_same_run, loop_of, small_job, train_rows

PHASES = (
    "schedule.phases=[{length: 3, target: 1}, {target: 0.5, curve: cosine},"
    " {length: 30%, target: 0}]"
)
VARIANTS: dict[str, tuple[str, ...]] = {
    "cosine": ("schedule=cosine", "schedule.warmup_from=0.3", "schedule.warmup=4"),
    "polynomial": ("schedule=polynomial", "schedule.hard_floor=true", "schedule.power=1.5"),
    "wsd": ("schedule=wsd", "schedule.decay=one_minus_sqrt", "schedule.decay_length=5"),
    "piecewise": ("schedule=piecewise", PHASES),
}


def rates(run: Path) -> list[float]:
    return [row["lr"] for row in train_rows(run)]


@pytest.mark.parametrize(
    ("name", "by"),
    [("cosine", "step"), ("polynomial", "step"), ("piecewise", "step"), ("wsd", "tokens")],
)
def test_every_update_of_a_run_has_the_rate_of_its_formula(
    tmp_path: Path, name: str, by: str
) -> None:
    """Batches are full here, so that tokens move along the curve as updates do, bit for bit."""
    flags = VARIANTS[name] if by == "step" else (*VARIANTS[name], f"schedule.by={by}")
    job = small_job(tmp_path, *BATCH, *flags, "duration=12 steps", "evaluation=null")
    factor = job.schedule.build()
    assert rates(train(job).directory) == [0.01 * factor(step) for step in range(12)]


def position(step: int, epochs: float, tokens: int = 0) -> Position:
    return Position(step=step, tokens=tokens, epochs=epochs)


def of(section: ScheduleConfig, tokens_per_update: int = 64) -> LearningRate:
    batch = BatchConfig(global_size=1, sequence_length=tokens_per_update)
    return LearningRate(resolve(section), resolve(Job(batch=batch)).batch)


def test_by_tokens_few_tokens_move_little() -> None:
    section = resolve(Cosine(horizon=100, warmup=10, by="tokens"))
    rate, curve = of(section, tokens_per_update=64), section.build()
    assert rate.factor(position(1, 0, tokens=32)) == curve(0.5) == 0.15
    assert rate.factor(position(99, 0, tokens=64 * 55)) == curve(55)


def test_a_state_of_another_schedule_is_left_alone() -> None:
    plateau = of(Plateau(patience=0))
    for loss in (1.0, 1.0):
        plateau.observe({"held_out": Score(loss, 1.0, 1.0, 9, 1, 1)})
    state = plateau.state_dict()
    assert state["plateau"]["level"] == 0.5
    cosine = of(Cosine(horizon=9))
    cosine.load_state_dict(state)
    assert cosine.state_dict() == {}
    plateau.load_state_dict({})
    assert plateau.factor(Position()) == 0.5


def test_what_is_monitored_is_looked_up() -> None:
    rate = of(Plateau(monitor="my.web.accuracy", patience=0))
    scores = {
        "held_out": Score(1.0, 1.0, 1.0, 9, 1, 1, 0.1),
        "my.web": Score(1.0, 1.0, 1.0, 9, 1, 1, 0.25),
    }
    rate.observe(scores)
    rate.observe(scores)
    assert rate.state_dict()["plateau"]["best"] == 0.25
    assert rate.factor(Position()) == 0.5


# The batch of the small job, at once.
BATCH = ("batch.micro_size=4", "batch.accumulation=1")
# An epoch of the whole text is longer than a test need be.
SHORT = ("data.sources.0.documents=12", "data.sources.0.length=80")
EPOCHS = (*SHORT, "schedule=linear", "schedule.by=epoch")
# A rate at which nothing is learnt, so that each evaluation is without a gain.
PLATEAU = (
    "schedule=plateau", "schedule.patience=0", "schedule.cooldown=1", "schedule.threshold=0.5"
)  # fmt: skip


def walked(job: Job, seconds: float = 0.0) -> Iterator[tuple[Position, float, Loop]]:
    """Take the steps of a job: the position before each, and its rate."""
    loop = loop_of(job)
    while loop.goes_on:
        before = loop.position
        loop.pending = loop.take_step()
        loop.advance(seconds)
        yield before, loop.complete_pending().lr, loop


def per_epoch_of(job: Job) -> float:
    return len(build_components(job).train_data) / 4


def test_by_epoch_in_a_run(tmp_path: Path) -> None:
    job = small_job(tmp_path, *BATCH, *EPOCHS, "duration=60 steps")
    assert isinstance(job.schedule, Moving)
    per_epoch, curve, seen = per_epoch_of(job), job.schedule.build(), list[float]()
    for step, (_, rate, _) in enumerate(walked(job)):
        first = next(n for n in range(step + 1) if n // per_epoch == step // per_epoch)
        assert rate == 0.01 * curve(first)
        seen.append(rate)
    assert 60 / per_epoch > 2 and len(set(seen)) == int(59 // per_epoch) + 1


# With a list the nearest limit counts: here the epochs, as 36 steps are more than two.
UNITS: dict[str, tuple[str, ...]] = {
    "epochs": ("duration=2 epochs",),
    "tokens": ("duration=2000 tokens",),
    "several": ("duration=[36 steps, 2 epochs]",),
    "a warm-up in epochs": ("duration=36 steps", "schedule.warmup=0.4 epochs"),
    "a warm-up in steps": ("duration=2 epochs", "schedule.warmup=5"),
}


@pytest.mark.parametrize(
    ("name", "unit"),
    [("cosine", "several"), ("wsd", "a warm-up in epochs"), ("polynomial", "a warm-up in steps"),
     ("piecewise", "tokens")],
)  # fmt: skip
def test_a_run_in_each_unit_has_the_rates_of_its_curve(
    tmp_path: Path, name: str, unit: str
) -> None:
    job = small_job(tmp_path, *BATCH, *SHORT, *VARIANTS[name], *UNITS[unit], "evaluation=null")
    per_epoch, curve, found = per_epoch_of(job), job.schedule.build(), list[float]()
    for before, rate, loop in walked(job):
        step = before.step
        place = ScheduleTime(
            {"steps": step, "tokens": 64 * step, "epochs": step / per_epoch},
            {"steps": 1, "tokens": 64, "epochs": 1 / per_epoch},
        )
        assert rate == pytest.approx(0.01 * curve(place), rel=1e-12)
        found.append(rate)
        assert loop.goes_on != is_over(job.duration, loop.position)
    assert len(found) > 10 and found[0] > 0 and max(found) == pytest.approx(0.01)


@pytest.mark.parametrize(("name", "duration"), [("cosine", "0.3 s"), ("wsd", "[30 steps, 0.3 s]")])
def test_a_run_in_time_follows_the_clock(tmp_path: Path, name: str, duration: str) -> None:
    job = small_job(tmp_path, *BATCH, *VARIANTS[name], f"duration={duration}")
    curve, steps = job.schedule.build(), 0
    for at, rate, _ in walked(job, seconds=1 / 64):
        place = ScheduleTime({unit: at.in_unit(unit) for unit in EVERY}, {"steps": 1, "tokens": 64})
        assert rate == 0.01 * curve(place)
        steps += 1
    assert steps == 20


def test_a_stopped_run_in_epochs_is_the_same_to_the_bit(tmp_path: Path) -> None:
    units = (*UNITS["epochs"], *UNITS["a warm-up in epochs"][1:])
    flags = (*BATCH, *SHORT, "schedule=wsd", *units, "evaluation.every=9 steps")
    oracle = train(small_job(tmp_path / "whole", *flags)).directory
    job = small_job(tmp_path / "stopped", *flags)
    train(job, until=20)
    assert_same_run(train(job).directory, oracle)


@pytest.mark.parametrize("flags", [EPOCHS, PLATEAU], ids=["epoch", "plateau"])
def test_a_resumed_run_has_the_same_rates(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """Also where the first part was evaluated at its end, and the whole run was not there."""
    horizon = () if flags is PLATEAU else ("schedule.horizon=36",)
    base = (*BATCH, *flags, *horizon)
    whole = train(small_job(tmp_path / "whole", *base, "duration=36 steps")).directory
    assert len(set(rates(whole))) > 2
    for steps in (26, 36) if flags is PLATEAU else (12, 36):
        parts = train(small_job(tmp_path / "parts", *base, f"duration={steps} steps")).directory
    assert rates(parts) == rates(whole)
