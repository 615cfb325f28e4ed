"""Callbacks: in which order they run."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from setpoint.config import SetpointError
from setpoint.resilience.signals import StopRequest
from setpoint.train.build.components import build_components
from setpoint.train.loop import Callback, Loop, Phase
from setpoint.train.position import Position
from setpoint.train.run import train
from setpoint.train.verdict import StepResult

from .small import small_job


class Noted(Callback):
    """Notes its name."""

    def __init__(self, name: str, phase: Phase, seen: list[str]) -> None:
        self.name, self.phase, self.seen = name, phase, seen

    def start(self, loop: Loop) -> None:
        self.seen.append(f"start {self.name}")

    def after_step(self, loop: Loop, result: StepResult) -> None:
        self.seen.append(self.name)


def test_phases_decide_the_order_and_within_one_the_order_of_building(tmp_path: Path) -> None:
    job, seen = small_job(tmp_path, "duration=1 steps"), list[str]()
    wanted = [(1, Phase.KEEP), (2, Phase.STEP), (3, Phase.EVALUATE), (4, Phase.STEP)]
    callbacks = [Noted(str(name), phase, seen) for name, phase in wanted]
    Loop(job, build_components(job), callbacks, StopRequest(), Position()).run()
    order = ["2", "4", "3", "1"]
    assert seen == [*(f"start {name}" for name in order), *order]
    assert Callback.phase is Phase.OBSERVE


class Paused(Noted):
    """Is called after the first step, and after others at an interval."""

    min_interval = 60.0

    def after_first_step(self, loop: Loop, result: StepResult) -> None:
        self.seen.append(f"first {result.step}")


def test_the_first_step_and_an_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("setpoint.train.loop.time.monotonic", lambda: clock[0])
    job, seen = small_job(tmp_path, "duration=5 steps"), list[str]()
    paused = Paused("paused", Phase.OBSERVE, seen)
    loop = Loop(job, build_components(job), [paused], StopRequest(), Position())
    loop.engine.span = lambda name: (
        clock.append(clock.pop() + 25.0 * (name == "clip")) or nullcontext()
    )
    loop.run()
    # At 25, 50, 75, 100 and 125 s.
    assert seen == ["start paused", "first 1", "paused"]


@pytest.mark.parametrize("interval", ["1 min", lambda: 1.0, -1.0, float("nan"), True, None])
def test_an_interval_that_is_no_number_of_seconds(tmp_path: Path, interval: Any) -> None:
    own = type("Own", (Callback,), {"min_interval": interval})
    with pytest.raises(SetpointError, match=r"Own\.min_interval = .* not a number of seconds"):
        train(small_job(tmp_path, "duration=1 steps"), callbacks=[own()])


def test_what_a_callback_does_not_do_is_not_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError

    for name in ("before_update", "after_launch", "after_step", "needs_result"):
        monkeypatch.setattr(Callback, name, never)
    job = small_job(tmp_path, "duration=2 steps")
    loop = Loop(job, build_components(job), [Callback()], StopRequest(), Position())
    loop.run()
    assert loop.position.step == 2
