"""What the fields of `[resilience]` about ranks that do not answer change."""

from __future__ import annotations

from typing import Any

import pytest

from setpoint.track.heartbeat import read_heartbeats
from setpoint.train.config import Job
from setpoint.train.run import train


def beats(job: Job) -> list[float]:
    """Seconds between the heartbeats of each rank."""
    return [beat.every for beat in read_heartbeats(train(job).directory)]


def checked(job: Job) -> list[int]:
    """The steps before which all ranks answer."""
    found: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("setpoint.train.run.LivenessCheck", lambda *_: found.append)
        train(job)
    return found


HEARTBEAT = ("resilience.heartbeat={}",)

ROWS: dict[str, tuple[Any, ...]] = {
    "TrainingResilience.heartbeat": (HEARTBEAT[0], beats, (), [60.0]),
    "Heartbeat.every": ("resilience.heartbeat.every=5", beats, HEARTBEAT, [5.0]),
    "TrainingResilience.liveness_every": ("resilience.liveness_every=2 steps", checked, (), [3]),
}
