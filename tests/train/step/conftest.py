"""What several tests of steps share."""

from __future__ import annotations

import math
from typing import Any

import pytest

from setpoint.train.build.components import Components, build_components
from setpoint.train.config import Job
from setpoint.train.step.objective import Objective

from ..poison import Poison, Poisoned


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Poison:
    """Let every training of the test meet bad batches, numbered from 1 in the order of the data."""

    def set_bad(*bad: int, value: float = math.nan) -> None:
        def build(job: Job, *given: Any) -> Components:
            parts = build_components(job, *given)
            objective: Any = Poisoned(parts, bad, value)
            assert isinstance(parts.objective, Objective)
            parts.objective = objective
            return parts

        monkeypatch.setattr("setpoint.train.run.build_components", build)

    return set_bad
