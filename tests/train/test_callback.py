"""Callbacks: in which order they run."""

from __future__ import annotations

from pathlib import Path

from setpoint.resilience.signals import StopRequest
from setpoint.train.build.components import build_components
from setpoint.train.loop import Callback, Loop, Phase, StepResult
from setpoint.train.position import Position

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
