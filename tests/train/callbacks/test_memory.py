from __future__ import annotations

from pathlib import Path

import pytest
import torch

from setpoint.resilience.signals import StopRequest
from setpoint.train.build.components import build_components
from setpoint.train.callbacks.profile import EmptyCacheCallback
from setpoint.train.loop import Loop
from setpoint.train.position import Position
from setpoint.train.run import train
from setpoint.units import Period

from ..small import events, small_job


def test_a_session_tells_once_where_the_memory_went(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job = small_job(tmp_path, "duration=3 steps", "tracking.progress=lines")
    outcome = train(job)
    found = [event for event in events(outcome.directory) if event["event"] == "memory"]
    assert len(found) == 1
    size = 4 * sum(p.numel() for p in outcome.components.model.parameters())
    report = found[0]
    assert (report["step"], report["parameters"], report["gradients"]) == (1, size, size)
    assert 2 * size < report["optimizer_state"] < 2.1 * size
    assert report["rest"] is None
    shown = [line for line in "".join(capfd.readouterr()).splitlines() if "memory: " in line]
    assert len(shown) == 1
    assert "parameters " in shown[0] and "peak memory (RSS) " in shown[0]


def test_each_session_tells_for_itself(tmp_path: Path) -> None:
    path = tmp_path / "run"
    train(small_job(tmp_path, "duration=2 steps", "schedule=constant"), path)
    train(small_job(tmp_path, "duration=4 steps", "schedule=constant"), path)
    assert [e["step"] for e in events(path) if e["event"] == "memory"] == [1, 3]


def test_the_cache_is_emptied_when_it_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: steps.append(loop.position.step))
    job = small_job(tmp_path, "duration=5 steps")
    callback = EmptyCacheCallback(Period("2 steps"))
    loop = Loop(job, build_components(job), [callback], StopRequest(), Position())
    loop.run()
    assert steps == [2, 4]
