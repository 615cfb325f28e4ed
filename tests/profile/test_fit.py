"""What a profile needs of where a job runs."""

from __future__ import annotations

import pytest
import torch

from setpoint.config import SetpointError, resolve
from setpoint.parallel.config import Parallel
from setpoint.profile.config import Profiling
from setpoint.profile.fit import place_problems, snapshot_problems


@pytest.mark.parametrize(
    ("section", "parallel", "paths"),
    [
        ({}, {}, []),
        ({"ranks": None}, {}, []),
        ({"ranks": (0, 1, 2)}, {"world_size": 2}, ["profiling.ranks.2"]),
        ({"snapshot": True}, {}, []),
        ({"snapshot": True}, {"device": "cpu"}, ["profiling.snapshot"]),
        ({"memory": True}, {"device": "cpu"}, []),
    ],
)
def test_ranks_and_devices(section: dict, parallel: dict, paths: list[str]) -> None:
    found = place_problems(resolve(Profiling(**section)), resolve(Parallel(**parallel)))
    assert [problem.path for problem in found] == paths


def test_a_snapshot_needs_a_gpu() -> None:
    section, parallel = resolve(Profiling(snapshot=True)), resolve(Parallel())

    def found(section: Profiling | None, device: str) -> list[str]:
        problems = snapshot_problems(section, parallel, lambda _: torch.device(device))
        return [problem.path for problem in problems]

    assert found(section, "cpu") == ["profiling.snapshot"]
    assert found(section, "cuda") == found(None, "cpu") == found(resolve(Profiling()), "cpu") == []


def test_a_device_that_is_not_there_is_said_elsewhere() -> None:
    def refuse(_: Parallel) -> torch.device:
        raise SetpointError("no such device")

    section = resolve(Profiling(snapshot=True))
    assert not list(snapshot_problems(section, resolve(Parallel()), refuse))
