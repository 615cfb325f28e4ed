"""A run leaves before its time is over, and where a file asks for it."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from setpoint.resilience import limits
from setpoint.resilience.limits import END_OF_JOB, SPARE, SessionLimits, end_of_job, started_at
from setpoint.resilience.signals import Stopped, StopRequest

from ..support.snapshots import refused


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """What the clocks say; the system's own is set an hour back after the first look."""
    now, looks = [1000.0], [0]

    def system() -> float:
        looks[0] += 1
        return now[0] + 1e6 - 3600 * (looks[0] > 1)

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "time", system)
    yield now


def test_time_is_left_for_two_steps_and_a_save(clock: list[float]) -> None:
    found = SessionLimits(StopRequest().ask, {"a": 1e6 + 1100, "b": 1e6 + 1300}, None)
    for seconds in (40.0, 5.0, 10.0):  # the first one compiles
        found.step_took(seconds)
    found.save_took(7.0)
    assert found.reserve == SPARE + 2 * 10 + 7
    clock[0] = 1100 - found.reserve - 0.1
    assert found.reason() is None
    clock[0] += 0.2
    assert found.reason() == "a"


def test_an_end_and_a_file_stop_what_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOOK", 0.01)
    monkeypatch.setattr(limits, "SPARE", 0.0)
    file = tmp_path / "STOP"
    for ends, words in (({"the end": time.time() + 0.1}, "the end"), ({}, f"the stop file {file}")):
        with pytest.raises(Stopped) as caught, StopRequest() as stop:
            stop.resumable = True
            found = stop.limits = SessionLimits(stop.ask, ends, file)
            found.start()
            if not ends:
                file.touch()
            time.sleep(10)
        assert caught.value.status == 75
        assert str(caught.value).startswith(f"stopped by {words}")


def test_the_end_of_a_slurm_job_has_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(END_OF_JOB, raising=False)
    assert end_of_job() is None
    later = int(time.time()) + 60
    monkeypatch.setenv(END_OF_JOB, str(later))
    assert end_of_job() == later
    for text in ("1000", "soon"):
        monkeypatch.setenv(END_OF_JOB, text)
        with refused():
            end_of_job()


def test_processes_say_when_they_were_started() -> None:
    assert time.time() - 86400 < started_at(os.getpid()) <= time.time() + 1
    assert abs(started_at(2**22 + 1) - time.time()) < 1  # no such process
