"""Modifiers go with any preset, and say what they change."""

from __future__ import annotations

import setpoint.presets  # noqa: F401 - registers them
from setpoint.config.composition import compose
from setpoint.config.record.record import differences
from setpoint.train.config import Job
from setpoint.units import Duration, Period


def test_smoke_is_short() -> None:
    job = compose(Job, "tiny", modifiers=["smoke(steps=3)"]).resolve()
    assert job.duration == Duration("3 steps")
    assert job.evaluation is not None
    assert job.evaluation.every == Period("last_step")
    assert compose(Job, "tiny", modifiers=["smoke"]).resolve().duration == Duration("10 steps")


def test_reproducible_touches_two_values() -> None:
    plain = compose(Job, "tiny").resolve()
    job = compose(Job, "tiny", modifiers=["reproducible"]).resolve()
    changed = {item.path: item.right for item in differences(plain, job)}
    assert changed == {"deterministic": True, "precision.compute": "fp32"}


def test_modifiers_combine_and_flags_win() -> None:
    job = compose(
        Job, "tiny", modifiers=["smoke", "reproducible"], flags=["duration=5 steps"]
    ).resolve()
    assert (job.duration, job.deterministic) == (Duration("5 steps"), True)
