"""Garbage in real runs: collected exactly when it is due, and given back however a run ends."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from setpoint.resilience.signals import StopRequest
from setpoint.train.build.components import build_components
from setpoint.train.callbacks.profile import CollectCallback
from setpoint.train.loop import Callback, Loop, Phase
from setpoint.train.position import Position
from setpoint.train.run import train
from setpoint.train.verdict import StepResult

from ..small import essence, small_job


@pytest.fixture(autouse=True)
def automatic() -> Iterator[None]:
    """As Python begins, and as the next test wants it."""
    gc.enable()
    yield
    gc.enable()


class Watch(Callback):
    """Counts collections up to each update, and may end the run by force."""

    phase = Phase.LAST

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.seen: list[int] = []
        self.by_step: dict[int, list[int]] = {}

    def count(self, phase: str, details: dict[str, Any]) -> None:
        if phase == "start":
            self.seen.append(details["generation"])

    def start(self, loop: Loop) -> None:
        gc.callbacks.append(self.count)

    def after_step(self, loop: Loop, result: StepResult) -> None:
        self.by_step[loop.position.step] = list(self.seen)
        self.seen.clear()
        assert not gc.isenabled()
        if self.error is not None and loop.position.step == 3:
            raise self.error

    def close(self, loop: Loop) -> None:
        gc.callbacks.remove(self.count)


def run(folder: Path, *flags: str, watch: Watch, start: int = 0) -> None:
    job = small_job(folder, "duration=7 steps", *flags)
    assert job.resilience.gc is not None
    components = build_components(job)
    collect = CollectCallback(job.resilience.gc)
    position = Position(step=start, tokens=start * 64)
    # The one that counts comes after, so that it sees what a step has collected.
    Loop(job, components, [collect, watch], StopRequest(), position).run()


@pytest.mark.parametrize("generation", [0, 1, 2])
def test_exactly_when_due(tmp_path: Path, generation: int) -> None:
    watch, name = Watch(), "resilience.gc"
    run(tmp_path, f"{name}.every=3 steps", f"{name}.generation={generation}", watch=watch)
    due = {step: [generation] if step % 3 == 0 else [] for step in range(1, 8)}
    assert watch.by_step == due
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("every", "due"),
    [("2 steps", {4, 6}), ("128 tokens", {4, 6}), ("last_step", {7}), ("never", set[int]())],
)
def test_periods_count_from_the_start_of_the_run(tmp_path: Path, every: str, due: set[int]) -> None:
    watch = Watch()
    run(tmp_path, f"resilience.gc.every={every}", watch=watch, start=3)
    assert {step for step, seen in watch.by_step.items() if seen} == due
    assert gc.isenabled()


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
def test_given_back_after_errors(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        run(tmp_path, "resilience.gc={}", watch=Watch(error))
    assert gc.isenabled()


def test_given_back_when_another_callback_cannot_start(tmp_path: Path) -> None:
    class Broken(Callback):
        phase = Phase.LAST

        def start(self, loop: Loop) -> None:
            assert not gc.isenabled()
            raise ValueError("broken")

    job = small_job(tmp_path, "resilience.gc={}")
    assert job.resilience.gc is not None
    callbacks = [CollectCallback(job.resilience.gc), Broken()]
    with pytest.raises(ValueError, match="broken"):
        Loop(job, build_components(job), callbacks, StopRequest(), Position()).run()
    assert gc.isenabled()


def test_nothing_is_learned_otherwise(tmp_path: Path) -> None:
    plain = train(small_job(tmp_path / "a", "duration=4 steps")).directory
    paced = train(
        small_job(tmp_path / "b", "duration=4 steps", "resilience.gc.every=1 steps")
    ).directory
    assert essence(paced) == essence(plain)
    assert gc.isenabled()


def test_python_decides_by_default(tmp_path: Path) -> None:
    assert small_job(tmp_path).resilience.gc is None
